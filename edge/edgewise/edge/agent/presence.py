"""Says that the device is there, what it is, and how far it is: `up/live`, `up/birth`, `up/sync`, and the last will."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable
from typing import Literal

from pydantic import BaseModel

from edgewise.core.errors import EdgewiseError, LinkLost
from edgewise.core.log import get_logger
from edgewise.wire import topics
from edgewise.wire.envelope import Sealer, encode
from edgewise.wire.fleet import Birth, Live, Sync
from edgewise.wire.mqtt.connection import Will
from edgewise.wire.mqtt.link import Link

log = get_logger(__name__)

STARTED = uuid.uuid4().hex
"""Id of this start of the service."""


class Presence:
    """What the device says at each connect, in this order: live, birth, sync; then whoever has more to say is called.

    Args:
        birth, sync: Make these messages as of now.
        on_born: Called after each.
    """

    def __init__(
        self,
        link: Link,
        *,
        birth: Callable[[], Awaitable[Birth]],
        sync: Callable[[], Awaitable[Sync]],
        on_born: Callable[[], Awaitable[None]],
    ) -> None:
        self._link = link
        self._make_birth = birth
        self._make_sync = sync
        self._on_born = on_born
        self._state: Literal["online", "draining"] = "online"
        self._reason = ""
        self._expected_s: float | None = None
        self._ending = "stopped"
        self._over = False

    def __repr__(self) -> str:
        return f"Presence({self._link.uid}, {self._state})"

    async def born(self) -> None:
        """Say everything; called with a connection that stands. What cannot be said (a full disk, a file that cannot be read)
        must not cost the link.

        Raises:
            LinkLost: It broke.
        """
        if self._over:
            return
        try:
            await self._say(topics.live(self._link.uid), self._live(), retain=True)
            await self.tell_birth()
            await self.tell_sync()
            await self._on_born()
        except LinkLost:
            raise
        except EdgewiseError as error:
            log.warning("birth_not_told", reason=error.message)
        except Exception:  # it would end the task that keeps the link
            log.exception("birth_broke")

    async def tell_birth(self) -> None:
        """Say again what the device is, after a change."""
        await self._say(topics.birth(self._link.uid), await self._make_birth(), retain=True)

    async def tell_sync(self) -> None:
        """Say again how far the device is: a fleet that has come may have missed it."""
        await self._say(topics.sync(self._link.uid), await self._make_sync())

    async def draining(self, reason: str) -> None:
        """No new work is taken."""
        self._state, self._reason = "draining", reason
        if self._link.connected:
            await self._say(topics.live(self._link.uid), self._live(), retain=True)

    def ends(self, reason: str, expected_s: float | None = None) -> None:
        """What the goodbye will say, and for how long the device will be away."""
        self._ending, self._expected_s = reason, expected_s

    def close(self) -> None:
        """Those who know what to say have ended: a connection that is made meanwhile only says goodbye."""
        self._over = True

    def farewell(self) -> tuple[str, bytes]:
        """The last message of a clean stop."""
        live = Live(state="offline", reason=self._ending, expected_s=self._expected_s)
        return topics.live(self._link.uid), encode(self._link.sealer.seal(live))

    def _live(self) -> Live:
        return Live(state=self._state, reason=self._reason)

    async def _say(self, topic: str, body: BaseModel, *, retain: bool = False) -> None:
        await self._link.publish(topic, encode(self._link.sealer.seal(body)), retain=retain)


def last_will(uid: str, ep: int) -> Will:
    """What the broker says of a device of session `ep` that is gone without a goodbye."""
    live = Live(state="offline", reason="the connection was lost")
    return Will(topics.live(uid), encode(Sealer(ep).seal(live)))
