"""The generation requests in flight and the last finished ones: limits, drain, and what /edgewise/v1/requests shows (no text)."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from edgewise.core.clock import Clock
from edgewise.core.errors import EdgewiseError, QueueFull, ShuttingDown
from edgewise.core.patience import end_task, wait_set
from edgewise.core.priority import Priority
from edgewise.pipeline.receipts import Usage

RETRY_AFTER_DRAIN_S = 10.0
RETRY_AFTER_FULL_S = 1.0

Result = TypeVar("Result")


class OpenRun(Protocol):
    """What answers a request: `pipeline.run.Run` of texts, `pipeline.pictures.PictureRun`."""

    @property
    def model_name(self) -> str: ...

    @property
    def first_token_s(self) -> float | None:
        """Seconds from the start to the first sign of the answer."""

    def usage(self) -> Usage: ...

    def fail(self, error: EdgewiseError) -> None:
        """End it for its caller with an error."""

    async def aclose(self) -> None: ...


def shutting_down() -> ShuttingDown:
    return ShuttingDown("The service is shutting down: try again shortly.", retry_after_s=RETRY_AFTER_DRAIN_S)


@dataclass(slots=True, kw_only=True)
class RequestRecord:
    """One generation request; times in seconds since the epoch, durations in milliseconds."""

    id: str
    route: str
    key: str | None
    started: float
    started_monotonic: float
    priority: Priority = Priority.INTERACTIVE
    model: str | None = None
    stream: bool = False
    status: int | None = None
    error: str | None = None
    duration_ms: float | None = None
    run: OpenRun | None = field(default=None, repr=False)

    def show(self, now_monotonic: float) -> dict[str, Any]:
        """Plain data: who asked what of which model, how many tokens, how long; never the text."""
        run = self.run
        usage = None if run is None else run.usage()
        first = None if run is None else run.first_token_s
        return {
            "id": self.id,
            "route": self.route,
            "model": self.model,
            "key": self.key,
            "priority": self.priority.label,
            "stream": self.stream,
            "started": round(self.started, 3),
            "status": self.status,
            "error": self.error,
            "prompt_tokens": None if usage is None else usage.prompt_tokens,
            "completion_tokens": None if usage is None else usage.completion_tokens,
            "ttft_ms": None if first is None else round(first * 1000, 3),
            "duration_ms": round((now_monotonic - self.started_monotonic) * 1000, 3)
            if self.duration_ms is None
            else self.duration_ms,
        }


class Requests:
    """Admission and drain. All methods run in the event loop.

    Args:
        limit: Requests in flight of one class and more urgent ones; one more is refused with 429.
        keep: Finished requests remembered.
    """

    def __init__(self, *, clock: Clock, limit: int = 256, keep: int = 200) -> None:
        self._clock = clock
        self._limit = limit
        self._open: dict[str, RequestRecord] = {}
        self._finished: deque[dict[str, Any]] = deque(maxlen=keep)
        self._idle = asyncio.Event()
        self._idle.set()
        self._drain = asyncio.Event()
        self._cut = asyncio.Event()

    def __repr__(self) -> str:
        return f"Requests(open={len(self._open)}, limit={self._limit}, draining={self.draining})"

    @property
    def open(self) -> int:
        return len(self._open)

    @property
    def used(self) -> float:
        """Share of the room for requests that others than the one who asks take, 0 to 1; less urgent ones may make it more."""
        return max(0, len(self._open) - 1) / self._limit

    @property
    def draining(self) -> bool:
        return self._drain.is_set()

    def enter(
        self, *, id: str, route: str, key: str | None, priority: Priority = Priority.INTERACTIVE
    ) -> RequestRecord:
        """Admit a request. Less urgent ones do not count against the limit: they shall not keep it out.

        Raises:
            ShuttingDown: (503) While draining.
            QueueFull: (429) At the limit.
        """
        if self.draining:
            raise shutting_down()
        if sum(1 for record in self._open.values() if record.priority <= priority) >= self._limit:
            raise QueueFull(
                f"{self._limit} requests are in progress, which is this service's limit: try again shortly.",
                retry_after_s=RETRY_AFTER_FULL_S,
            )
        record = RequestRecord(
            id=id,
            route=route,
            key=key,
            priority=priority,
            started=self._clock.time(),
            started_monotonic=self._clock.monotonic(),
        )
        self._open[id] = record
        self._idle.clear()
        return record

    def attach(self, record: RequestRecord, run: OpenRun) -> None:
        """The request's run has begun. Raises `ShuttingDown` if the running ones were cut meanwhile."""
        record.run = run
        if self._cut.is_set():
            raise shutting_down()

    async def until_cut(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Do `work`, which comes before a run; raises `ShuttingDown` and cancels it if the service must end first."""
        task = asyncio.create_task(work)
        cut = asyncio.create_task(self._cut.wait())
        try:
            await asyncio.wait({task, cut}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise shutting_down()
            return task.result()
        finally:
            await end_task(task, cut)

    async def end(self, record: RequestRecord, *, status: int) -> None:
        """Close the request's run, if one has begun, and give its place back, also where that is cancelled or fails."""
        try:
            if record.run is not None:
                await record.run.aclose()
        finally:
            self.leave(record, status=status)

    def leave(self, record: RequestRecord, *, status: int) -> None:
        """The request has been answered or given up."""
        record.status = status
        now = self._clock.monotonic()
        record.duration_ms = round((now - record.started_monotonic) * 1000, 3)
        self._open.pop(record.id, None)
        self._finished.append(record.show(now))
        record.run = None
        if not self._open:
            self._idle.set()

    def show(self) -> dict[str, Any]:
        """In flight (oldest first) and finished (latest first)."""
        now = self._clock.monotonic()
        return {
            "draining": self.draining,
            "limit": self._limit,
            "in_flight": [record.show(now) for record in self._open.values()],
            "finished": list(reversed(self._finished)),
        }

    def begin_drain(self) -> None:
        """Refuse new requests from now on; those in flight go on."""
        self._drain.set()

    async def wait_drain(self) -> None:
        """Returns when a drain has begun."""
        await self._drain.wait()

    async def wait_idle(self, timeout_s: float) -> bool:
        """Whether all requests ended within the time; true at once if none is open."""
        return self._idle.is_set() or await wait_set(self._idle, timeout_s)

    def cut(self) -> int:
        """End what still runs: streams get an error event, others an error body. Returns how many were cut."""
        self.begin_drain()
        self._cut.set()
        running = [record.run for record in self._open.values() if record.run is not None]
        for run in running:
            run.fail(shutting_down())
        return len(running)
