"""Time as a collaborator: wall clock, monotonic clock and sleep behind one protocol, with a fake that tests drive."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import re
import time
from datetime import datetime, timezone
from typing import Protocol

# This code did not exist before this date: an earlier time means a dead clock battery or no time server reached yet.
EARLIEST_PLAUSIBLE = datetime(2026, 1, 1, tzinfo=timezone.utc)


class Clock(Protocol):
    """Where time comes from. Durations use `monotonic`, dates use `time`; the two never mix."""

    def time(self) -> float:
        """Seconds since the Unix epoch; jumps when the system clock is set."""

    def monotonic(self) -> float:
        """Seconds since an arbitrary start; never goes back."""

    async def sleep(self, seconds: float) -> None: ...


class SystemClock:
    """The machine's own clocks."""

    def time(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class FakeClock:
    """A clock that stands still until `advance` is called; sleepers wake in the order of their deadlines."""

    def __init__(self, now: float = 1_800_000_000.0) -> None:
        self._start = now
        self._elapsed = 0.0
        self._order = itertools.count()
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []

    def __repr__(self) -> str:
        return f"FakeClock(elapsed={self._elapsed}, sleepers={len(self._sleepers)})"

    def time(self) -> float:
        return self._start + self._elapsed

    def monotonic(self) -> float:
        return self._elapsed

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        wake = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._elapsed + seconds, next(self._order), wake))
        await wake

    def set(self, now: float) -> None:
        """As somebody who sets the system clock: no time passes."""
        self._start = now - self._elapsed

    def advance(self, seconds: float) -> None:
        """Move time forward and wake every sleeper whose deadline is reached; the event loop runs them afterwards.

        Raises:
            ValueError: `seconds` is negative.
        """
        if seconds < 0:
            raise ValueError(f"a clock does not run backwards: {seconds}")
        self._elapsed += seconds
        while self._sleepers and self._sleepers[0][0] <= self._elapsed:
            wake = heapq.heappop(self._sleepers)[2]
            if not wake.done():
                wake.set_result(None)


_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)([smhdw])")
_UNIT_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}


def parse_duration(text: str) -> float:
    """Seconds of a duration such as "90d", "12h", "30m", "45s" or "2w".

    Raises:
        ValueError: Anything else.
    """
    match = _DURATION.fullmatch(text.strip().lower())
    if match is None:
        raise ValueError(f"{text!r} is no duration: write a number and s, m, h, d or w, for instance 90d")
    return float(match[1]) * _UNIT_SECONDS[match[2]]


def plausible(now: float) -> bool:
    """Whether `now` (seconds since the epoch) can be a true time for this software."""
    return now >= EARLIEST_PLAUSIBLE.timestamp()
