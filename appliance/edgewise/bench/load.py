"""When requests are sent: at times of their own (open loop), or each when an earlier one is done (closed loop).

In an open loop the latency of a request counts from the time it was due, also where this program or the server's queue made it
wait. A generator that waits for slow answers before it sends the next request measures its own politeness instead
("coordinated omission", Gil Tene); the closed loop does exactly that on purpose: it answers how many users a server bears.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from edgewise.bench.request import Sample
from edgewise.bench.work import Work


class Ask(Protocol):
    """Does one request, noting everything in the sample."""

    def __call__(self, work: Work, sample: Sample) -> Awaitable[None]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """When a run ends: after so many requests, or when no more are sent after so many seconds; the first that comes."""

    requests: int | None = None
    duration_s: float | None = None


@dataclass(slots=True)
class Run:
    """What a run has brought so far; kept by the caller, so that an interrupted run has its results.

    Attributes:
        samples: Of the requests that have ended, in the order of their ends.
        started: Requests that have been sent.
        began, ended: Seconds of `time.perf_counter`; `ended` is set by the last request's end.
        notify: Called after every change.
    """

    samples: list[Sample] = field(default_factory=list)
    started: int = 0
    began: float = 0.0
    ended: float = 0.0
    notify: Callable[[Run], None] = field(default=lambda _: None)

    async def one(self, ask: Ask, work: Work, due: float) -> None:
        """Does one request and keeps its sample."""
        sample = Sample(scheduled=due)
        self.started += 1
        self.notify(self)
        try:
            await ask(work, sample)
            self.samples.append(sample)
        finally:
            self.ended = time.perf_counter()
            self.notify(self)


def poisson_arrivals(rate: float, seed: int) -> Iterator[float]:
    """Endless arrival times in seconds from the start, at `rate` a second on average: exponential gaps (Poisson process)."""
    rng = random.Random(seed)  # noqa: S311 - arrival times
    due = 0.0
    while True:
        due += rng.expovariate(rate)
        yield due


async def open_loop(run: Run, ask: Ask, works: Iterator[Work], arrivals: Iterator[float], limits: Limits) -> None:
    """Sends each request when it is due, whatever became of the earlier ones, and waits for all of them.

    Args:
        run: Filled.
        ask: Does one request.
        works: What to ask.
        arrivals: Seconds from the start, growing.
        limits: When to end.
    """
    run.began = time.perf_counter()
    tasks: set[asyncio.Task[None]] = set()
    try:
        for due in itertools.islice(arrivals, limits.requests):
            if limits.duration_s is not None and due >= limits.duration_s:
                break
            await asyncio.sleep(max(0.0, run.began + due - time.perf_counter()))
            task = asyncio.create_task(run.one(ask, next(works), run.began + due))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


async def closed_loop(run: Run, ask: Ask, works: Iterator[Work], concurrency: int, limits: Limits) -> None:
    """Keeps `concurrency` requests in flight until the limits are reached, and waits for the last ones.

    Args:
        run: Filled; a request is due when it is sent.
        ask: Does one request.
        works: What to ask.
        concurrency: Requests in flight.
        limits: When to end.
    """
    run.began = time.perf_counter()
    numbers = iter(range(limits.requests)) if limits.requests is not None else itertools.count()

    async def user() -> None:
        for _ in numbers:
            now = time.perf_counter()
            if limits.duration_s is not None and now - run.began >= limits.duration_s:
                return
            await run.one(ask, next(works), now)

    users = [asyncio.create_task(user()) for _ in range(concurrency)]
    try:
        await asyncio.gather(*users)
    finally:
        for task in users:
            task.cancel()
