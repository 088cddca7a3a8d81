"""Answers devices that have connected: with the documents and commands that they lack.

One task works them off in batches. A device that connects again and again is answered once in a while, always to its last word.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from edgewise.cloud.fleet.uplink import Uplink
from edgewise.core.clock import Clock, SystemClock
from edgewise.core.errors import EdgewiseError
from edgewise.core.log import get_logger
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
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            if not self._waiting:
                await self._some.wait()
            self._some.clear()
            now = self._clock.monotonic()
            for uid in [uid for uid, at in self._answered.items() if now - at >= self._window_s]:
                del self._answered[uid]
            batch = {uid: one for uid, one in self._waiting.items() if uid not in self._answered}
            if not batch:
                await self._clock.sleep(self._window_s / 4)
                continue
            batch = dict(list(batch.items())[:_BATCH])
            for uid in batch:
                del self._waiting[uid]
                self._answered[uid] = now
            await self._answer(batch)

    async def _answer(self, batch: Mapping[str, Synced]) -> None:
        for answer in self._answers:
            try:
                await answer(batch)
            except EdgewiseError as error:  # the devices sync again when the link is back
                log.info("fleet_sync_not_answered", devices=len(batch), reason=error.message)
            except Exception:  # a fault must not leave all later devices without an answer
                log.exception("fleet_sync_failed", devices=len(batch))
