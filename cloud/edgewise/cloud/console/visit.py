"""One open page: who looks at it, what it may do, and how it stays current."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TypeVar

from fastapi import Request
from nicegui import Client, background_tasks, ui

from edgewise.cloud.console.guard import ACTOR, SESSION
from edgewise.cloud.console.sessions import Console
from edgewise.cloud.fleet import views
from edgewise.cloud.fleet.actor import ROLES, Actor, Role
from edgewise.cloud.fleet.changes import Change
from edgewise.cloud.fleet.services import Fleet
from edgewise.core.errors import EdgewiseError, NotAuthenticated
from edgewise.core.log import get_logger

Result = TypeVar("Result")
Refresh = Callable[["set[str] | None"], Awaitable[None]]
log = get_logger(__name__)
_SESSION_CHECK_S = 20.0
_LEAVE_S = 2.0  # for the browser to go to the login by itself
_AT_ONCE = 40  # a query has at most 100 terms and 2000 characters


@dataclass
class _Watch:
    kinds: Collection[str]
    refresh: Refresh
    ids: set[str] | None  # that changed since the last refresh; None: anything may have
    due: bool = False


class Visit:
    """An open page. Everything that it does is done as `me()`, so an ended session or a lost role counts at once."""

    def __init__(self, console: Console, request: Request, client: Client) -> None:
        self.console = console
        self.request = request
        self.client = client
        self.token: str = request.scope[SESSION]
        self.actor = self._here(request.scope[ACTOR])
        self._watches: list[_Watch] = []
        self._live = ExitStack()  # from before anything is read: what changes while the page is built is not missed
        self._changes = self._live.enter_context(console.fleet.changes.subscribe(self.actor.tenant))
        client.on_delete(self._live.close)

    @property
    def fleet(self) -> Fleet:
        return self.console.fleet

    @property
    def address(self) -> str:
        """Where people and devices reach the fleet: as configured, else as this browser does."""
        return str(self.console.settings.public_url or self.request.base_url).rstrip("/")

    def may(self, role: Role) -> bool:
        """Whether to show what needs `role`; the services check again."""
        return ROLES.index(self.actor.role) >= ROLES.index(role)

    async def me(self) -> Actor:
        """The actor, looked up again.

        Raises:
            NotAuthenticated: The session has ended; the page goes to the login.
        """
        actor = await self.console.actor_of(self.token, fresh=True)
        if actor is None:
            self.client.run_javascript(
                "location.href = '/login?expired=1&next=' + encodeURIComponent(location.pathname)"
            )
            raise NotAuthenticated("Your session has ended. Log in again.")
        self.actor = self._here(actor)
        return self.actor

    def _here(self, actor: Actor) -> Actor:
        """As the audit log names it: with where it came from."""
        address = self.request.client.host if self.request.client else ""
        return replace(actor, via=f"console {address}"[:40])

    async def act(self, work: Callable[[Actor], Awaitable[Result]], done: str = "") -> Result | None:
        """Does something for the person and says how it went; None if it did not."""
        try:
            result = await work(await self.me())
        except EdgewiseError as error:
            self.complain(error.message)
            return None
        if done:
            self.tell(done)
        return result

    def tell(self, text: str) -> None:
        with self.client:
            ui.notify(text, classes="note-ok", position="bottom-left", timeout=4000)

    def complain(self, text: str) -> None:
        with self.client:
            ui.notify(
                text, classes="note-bad", position="bottom-left", timeout=9000, close_button="Close", multi_line=True
            )

    async def devices(self, uids: Sequence[str | None]) -> Mapping[str, views.DeviceView]:
        """Some devices by uid, a few dozen in a query; what is gone is left out."""
        wanted = sorted({uid for uid in uids if uid})
        found: dict[str, views.DeviceView] = {}
        for start in range(0, len(wanted), _AT_ONCE):
            part = wanted[start : start + _AT_ONCE]
            page = await self.fleet.registry.devices(self.actor, uid_query(part), limit=len(part))
            found.update((device.uid, device) for device in page.items)
        return found

    async def names(self, uids: Sequence[str | None]) -> Mapping[str, str]:
        """Their names; their uids, where they have none."""
        return {uid: device.name or uid for uid, device in (await self.devices(uids)).items()}

    # --- live ---

    def watch(self, kinds: Collection[str], refresh: Refresh) -> None:
        """`refresh(ids)` at most once a second after changes of these kinds; None for ids: everything may have changed."""
        self._watches.append(_Watch(kinds, refresh, set()))

    def start(self) -> None:
        """Once the page is built: follow the fleet until the page is gone."""
        tasks = [
            background_tasks.create(self._follow(), name="console page"),
            background_tasks.create(self._guard_session(), name="console session"),
        ]
        self.client.on_delete(lambda: [task.cancel() for task in tasks] and None)

    async def _follow(self) -> None:
        if not self._watches:
            self._live.close()
            return
        while True:
            changes = await self._changes.next()
            lost, self._changes.lost = self._changes.lost, False
            for watch in self._watches:
                _note(watch, changes, lost)
            await self._refresh()
            await asyncio.sleep(1.0)

    async def _refresh(self) -> None:
        for watch in self._watches:
            if not watch.due:
                continue
            ids, watch.ids, watch.due = watch.ids, set(), False
            try:
                with self.client:
                    await watch.refresh(ids)
            except EdgewiseError as error:
                self.complain(error.message)
            except Exception:
                log.exception("page_refresh_failed", page=self.client.page.path)
                self.complain("This page cannot be kept current. Load it again; the service's log says why.")

    async def _guard_session(self) -> None:
        """Ends the page with its session, whatever the browser does: nothing more is sent to it."""
        while True:
            await asyncio.sleep(_SESSION_CHECK_S)
            try:
                await self.me()
            except NotAuthenticated:
                await asyncio.sleep(_LEAVE_S)
                if not self.client.is_deleted:
                    self.client.delete()
                return
            except EdgewiseError as error:
                log.error("session_unchecked", reason=error.message)  # the database refuses; the next look may succeed


def uid_query(uids: Sequence[str]) -> str:
    """Just these devices, in the language of queries."""
    return " OR ".join(f"uid:{uid}" for uid in uids)


def _note(watch: _Watch, changes: list[Change], lost: bool) -> None:
    ids = {change.id for change in changes if change.kind in watch.kinds}
    if lost or "" in ids:
        watch.ids, watch.due = None, True
    elif ids:
        watch.due = True
        if watch.ids is not None:
            watch.ids |= ids
