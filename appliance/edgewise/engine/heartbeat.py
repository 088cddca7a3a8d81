"""Signs of life: what the engine process reports about its loop, and how the service judges it.

Both classes are free of I/O. A long step in native code is not a dead engine: the heartbeat comes from a thread of its own
and says for how long the present turn of the loop has been running, so silence and a stuck step are told apart.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from edgewise.engine.messages import Heartbeat

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class StepClock:
    """Engine side: one thread turns, another asks. Assignments of single attributes are atomic, so no lock is needed."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._started: float | None = None
        self.steps = 0

    def begin(self) -> None:
        self._started = self._clock()

    def end(self) -> None:
        self._started = None
        self.steps += 1

    def beat(self, epoch: int) -> Heartbeat:
        started = self._started
        ago = None if started is None else self._clock() - started
        return Heartbeat(epoch=epoch, steps=self.steps, step_started_ago=ago, rss_bytes=resident_bytes())


def resident_bytes() -> int:
    """Resident set of this process in bytes (proc(5), statm: second field, in pages)."""
    return resident_bytes_of("self")


def resident_bytes_of(process: int | str) -> int:
    """The same of another process, by its id; 0 where there is none (any more)."""
    try:
        return int(Path(f"/proc/{process}/statm").read_bytes().split()[1]) * _PAGE_BYTES
    except (FileNotFoundError, ProcessLookupError):
        return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """When an engine counts as hung; seconds.

    Attributes:
        silence_s: Without any message from a ready engine.
        step_s: In one turn of its loop.
        load_silence_s: Without any message while loading; longer, as importing large libraries may hold the interpreter lock.
        load_s: From start to ready.
    """

    silence_s: float = 15.0
    step_s: float = 120.0
    load_silence_s: float = 120.0
    load_s: float = 1800.0


class Watchdog:
    """Service side: fed with whatever the engine sends, asked at regular intervals for a verdict.

    Time during which the service itself was stalled (a blocked event loop, a stopped process) is not held against the engine:
    a gap between two questions that is longer than `tick_s` counts as `tick_s` only.
    """

    def __init__(self, limits: Limits, *, tick_s: float, now: float) -> None:
        self._limits = limits
        self._tick_s = tick_s
        self._asked = now
        self._silent_s = 0.0
        self._loading_s = 0.0
        self._ready = False
        self._step_age: float | None = None

    def __repr__(self) -> str:
        return f"Watchdog(ready={self._ready}, silent={self._silent_s:.1f} s, step={self._step_age})"

    def ready(self) -> None:
        self._ready = True

    def heard(self) -> None:
        """Any message is a sign of life."""
        self._silent_s = 0.0

    def beat(self, heartbeat: Heartbeat) -> None:
        self._step_age = heartbeat.step_started_ago

    def verdict(self, now: float) -> str | None:
        """Why the engine is to be killed, or None while it is well."""
        gap = min(now - self._asked, self._tick_s)
        self._asked = now
        self._silent_s += gap
        self._loading_s += 0.0 if self._ready else gap
        limits = self._limits
        silence_limit = limits.silence_s if self._ready else limits.load_silence_s
        if self._silent_s > silence_limit:
            return f"no sign of life for {self._silent_s:.1f} s (limit {silence_limit:g} s)"
        if not self._ready and self._loading_s > limits.load_s:
            return f"not ready after {self._loading_s:.1f} s (limit {limits.load_s:g} s)"
        if self._step_age is not None and self._step_age > limits.step_s:
            return f"one step has been running for {self._step_age:.1f} s (limit {limits.step_s:g} s)"
        return None
