"""Answers devices that have connected: with the documents and commands that they lack.

One task works them off in batches. A device that connects again and again is answered once in a while, always to its last word.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from edgewise.cloud.fleet.uplink import Uplink
from edgewise.core.clock import Clock, SystemClock
from edgewise.core.errors import EdgewiseError
from edgewise.core.log import get_logger
from edgewise.core.patience import end_task
from edgewise.wire.fleet import Sync

log = get_logger(__name__)

WINDOW_S = 2.0
"""A device is answered once in so long."""
_BATCH = 100


@dataclass(frozen=True, slots=True)
class Synced:
    """A device that wants an answer. `place` orders its sync among its other messages."""

    tenant: str
    uid: str
    sync: Sync
    place: tuple[int, int]


Answer = Callable[[Mapping[str, Synced]], Awaitable[None]]
"""Sends what the devices (by uid) lack."""


class Syncs:
    """`add` answers, `start`, then hand it `after` of each sync."""

    def __init__(self, *, window_s: float = WINDOW_S, clock: Clock | None = None) -> None:
        self._window_s = window_s
        self._clock = clock or SystemClock()
        self._answers: list[Answer] = []
        self._waiting: dict[str, Synced] = {}
        self._answered: dict[str, float] = {}
        self._some = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def add(self, answer: Answer) -> None:
        self._answers.append(answer)

    def after(self, tenant: str, uplink: Uplink) -> None:
        """For `Ingest.on("sync", after=...)`."""
        if uplink.retained:
            return
        self._waiting[uplink.uid] = Synced(tenant, uplink.uid, uplink.read(Sync), uplink.envelope.place)
        self._some.set()

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="fleet-syncs")

    async def stop(self) -> None:
        await end_task(self._task)

    async def _run(self) -> None:
        while True:
            batch = self._next()
            if batch:
                await self._answer(batch)
            else:
                await self._wait()

    def _next(self) -> dict[str, Synced]:
        """Those that wait and were not answered just now."""
        now = self._clock.monotonic()
        self._answered = {uid: at for uid, at in self._answered.items() if now - at < self._window_s}
        uids = list(itertools.islice((uid for uid in self._waiting if uid not in self._answered), _BATCH))
        self._answered.update(dict.fromkeys(uids, now))
        return {uid: self._waiting.pop(uid) for uid in uids}

    async def _wait(self) -> None:
        """Until another device syncs, or the window of one that waits may be over."""
        timer = None
        if self._waiting:
            timer = asyncio.get_running_loop().call_later(self._window_s / 4, self._some.set)
        try:
            await self._some.wait()
        finally:
            if timer is not None:
                timer.cancel()
        self._some.clear()

    async def _answer(self, batch: Mapping[str, Synced]) -> None:
        for answer in self._answers:
            try:
                await answer(batch)
            except EdgewiseError as error:  # the devices sync again when the link is back
                log.info("fleet_sync_not_answered", devices=len(batch), reason=error.message)
            except Exception:  # a fault must not leave all later devices without an answer
                log.exception("fleet_sync_failed", devices=len(batch))
