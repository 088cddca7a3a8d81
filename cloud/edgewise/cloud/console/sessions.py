"""Who is logged in: the session's cookie, what it stands for, and proof that a form or a socket is the console's own."""

from __future__ import annotations

import hmac
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from edgewise.cloud.console.conversations import Conversations
from edgewise.cloud.fleet.actor import Actor
from edgewise.cloud.fleet.services import Fleet
from edgewise.core.settings_fleet import FleetSettings

FORM_COOKIE = "edgewise_form"
_FRESH_S = 2.0
_KEPT = 1000


@dataclass
class Console:
    """The console of this process: the services that it shows, and what it remembers of sessions.

    `actor_of` may answer from memory for two seconds, since one page asks for dozens of files; whoever acts asks with `fresh`.
    """

    fleet: Fleet
    settings: FleetSettings
    conversations: Conversations = field(default_factory=Conversations)
    _known: dict[str, tuple[float, Actor]] = field(default_factory=dict)

    async def actor_of(self, token: str | None, *, fresh: bool = False) -> Actor | None:
        """Whose session it is; None once it has ended."""
        if not token:
            return None
        now = time.monotonic()
        known = self._known.get(token)
        if known is not None and not fresh and now - known[0] < _FRESH_S:
            return known[1]
        actor = await self.fleet.people.of_session(token)
        if actor is None:
            self._forget(token)
            return None
        if len(self._known) >= _KEPT:
            self._known = {key: value for key, value in self._known.items() if now - value[0] < _FRESH_S}
        self._known[token] = (now, actor)
        return actor

    def _forget(self, token: str) -> None:
        self._known.pop(token, None)
        self.conversations.forget(token)

    async def logout(self, token: str) -> None:
        self._forget(token)
        await self.fleet.people.logout(token)

    def same_origin(self, headers: Mapping[str, str], *, needed: bool) -> bool:
        """Whether the browser says that our own page asks. `needed`: a missing Origin is a no, as for forms and sockets."""
        origin = headers.get("origin")
        if origin is None:
            return not needed
        ours = {headers.get("host", ""), urlsplit(self.settings.public_url or "").netloc}
        return bool(netloc := urlsplit(origin).netloc) and netloc in ours


_mounted: Console | None = None


def mount(console: Console) -> Console:
    """NiceGUI has one application in a process, so there is one console; a second one takes the place of the first."""
    global _mounted
    _mounted = console
    return console


def mounted() -> Console | None:
    return _mounted


def new_form_secret() -> str:
    """For the login form, where there is no session yet: the same value in a cookie and in the form."""
    return secrets.token_urlsafe(24)


def equal(left: str, right: str) -> bool:
    return bool(left) and hmac.compare_digest(left.encode(), right.encode())
