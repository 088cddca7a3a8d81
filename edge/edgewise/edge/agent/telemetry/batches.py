"""Samples at a steady pace, put into the uplink: one by one while somebody listens, in batches while nobody does."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from edgewise.core.errors import EdgewiseError
from edgewise.core.log import get_logger
from edgewise.core.patience import end_task
from edgewise.edge.agent.moments import Moment, Moments
from edgewise.edge.agent.telemetry.meter import Meter
from edgewise.edge.agent.uplink.uplink import Uplink
from edgewise.edge.agent.waker import Waker
from edgewise.wire import topics
from edgewise.wire.fleet import Sample, Telemetry

log = get_logger(__name__)

GROUP = "device"
BATCH = 30
"""Samples in a row that is written while nobody listens. A kill loses at most so many."""


class TelemetryTask:
    """Args:
    period_s: Seconds between samples; may be changed at any time.
    """

    def __init__(
        self,
        meter: Meter,
        uplink: Uplink,
        moments: Moments,
        uid: str,
        *,
        period_s: float,
    ) -> None:
        self._meter = meter
        self._uplink = uplink
        self._moments = moments
        self._topic = topics.telemetry(uid, GROUP)
        self._samples: list[tuple[Moment, dict[str, float]]] = []
        self._waker = Waker()
        self._task: asyncio.Task[None] | None = None
        self.period_s = period_s
        self.wanted = True

    def __repr__(self) -> str:
        return f"TelemetryTask(period_s={self.period_s}, gathered={len(self._samples)})"

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="agent-telemetry")

    async def stop(self) -> None:
        """What was gathered is kept for the next start."""
        await end_task(self._task)
        await self._guarded(self._flush)

    def change(self, period_s: float, *, wanted: bool) -> None:
        """At another pace from now on, or not at all."""
        if (period_s, wanted) != (self.period_s, self.wanted):
            self.period_s, self.wanted = period_s, wanted
            self._waker.wake()

    def soon(self) -> None:
        """Somebody listens now: the next sample is due at once."""
        self._waker.wake()

    async def _run(self) -> None:
        while True:
            await self._guarded(self._look)
            await self._waker.wait(self.period_s)

    async def _guarded(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except EdgewiseError as error:
            log.info("telemetry_waits", reason=error.message)
        except Exception:  # outermost frame of a task
            log.exception("telemetry_broke")

    async def _look(self) -> None:
        if not self.wanted:
            self._samples.clear()
            return
        self._samples.append((self._moments.now(), await self._meter.sample()))
        if self._uplink.listening or len(self._samples) >= BATCH:
            await self._flush()

    async def _flush(self) -> None:
        if not self._samples:
            return
        samples, self._samples = self._samples, []
        if not self._uplink.room:
            return  # a disk that is nearly full has room for commands only
        ages = [self._moments.age_s(moment) for moment, _ in samples]
        told = tuple(
            Sample(before_ms=max(0, int(1000 * (age - ages[-1]))), values=values)
            for age, (_, values) in zip(ages, samples, strict=True)
        )
        telemetry = Telemetry(group=GROUP, age_ms=int(1000 * ages[-1]), samples=told)
        await self._uplink.rows.add("telemetry", self._topic, telemetry)
        self._uplink.sender.wake()
