"""Chooses among candidates on the card: each is checked first, then timed, and what fails is named and never used.

A candidate may end the process, or the device's work (an illegal access does). So what is being tried is written to a journal
before it is tried; a tuner that begins again refuses what broke the device, or what two of its predecessors died of: one death
may have another cause, as a kill from outside.
"""

from __future__ import annotations

import json
import statistics
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from triton.errors import TritonError

from edgewise.core.files import atomic_write, make_folder
from edgewise.kernels.tuned import Trial

FAILURES = (TritonError, RuntimeError, OSError, ValueError, AssertionError, subprocess.SubprocessError)
"""What compiling and running a candidate may raise."""

Call = Callable[[], object]
Timer = Callable[[Sequence[Call]], float]
"""Microseconds of one of several calls that follow one another."""
_MOST_DEATHS = 2  # of processes that tried a candidate, before it is refused
_LEAST_US, _REPEATS, _MOST_CALLS = 1500.0, 7, 256


class Candidate(Protocol):
    """A way to launch, as data."""

    def _asdict(self) -> dict[str, Any]: ...


class Choice(NamedTuple):
    """The quickest candidate that is right; the quickest of those that wait for their predecessor to end, and of those that do
    not. `us` are theirs; a candidate is None where all failed. `default` is the first candidate, None where it failed."""

    best: Any
    us: float
    apart: Any
    apart_us: float
    overlapped: Any
    overlapped_us: float
    default: Any


class Journal:
    """What is being tried, in a file of one process at a time, so that it outlives the process; without a file nothing is
    remembered. Names must say all that decides what is computed.

    Raises:
        ValueError: The file cannot be understood.
        StorageError: It cannot be written.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._trying = ""
        self._deaths: dict[str, int] = {}
        if path is not None and path.exists():
            found = json.loads(path.read_text(encoding="utf-8"))
            if not isinstance(found, dict) or not isinstance(found.get("deaths"), dict):
                raise ValueError(f"{path} is no journal of a tuner; `edgewise kernels tune --again` begins a new one")
            self._deaths = dict(found["deaths"])
            if trying := found.get("trying"):
                self._deaths[trying] = self._deaths.get(trying, 0) + 1
            self._write("")

    @property
    def fatal(self) -> set[str]:
        return {name for name, deaths in self._deaths.items() if deaths >= _MOST_DEATHS}

    def begin(self, name: str) -> None:
        self._write(name)

    def end(self) -> None:
        self._write("")

    def blame(self) -> None:
        """What is being tried broke the device: no other cause is possible."""
        self._deaths[self._trying] = _MOST_DEATHS
        self._write("")

    def _write(self, trying: str) -> None:
        self._trying = trying
        if self._path is not None:
            make_folder(self._path.parent)
            atomic_write(self._path, json.dumps({"trying": trying, "deaths": self._deaths}, sort_keys=True))


class Tuner:
    """Attributes:
    trials: Every candidate so far.
    """

    def __init__(self, timer: Timer, journal: Journal | None = None) -> None:
        self.trials: list[Trial] = []
        self._timer = timer
        self._journal = journal or Journal(None)

    def choose(
        self,
        site: str,
        candidates: Sequence[Any],
        problem: Callable[[Any], str],
        calls: Callable[[Any], Sequence[Call]],
    ) -> Choice:
        """The quickest of `candidates` that have no problem.

        Args:
            site: What they compute.
            candidates: The default first.
            problem: What is wrong with a candidate's results, "" if nothing; it may raise `FAILURES`.
            calls: Calls of a candidate, over inputs that do not fit into a cache together.

        Raises:
            RuntimeError: The device can compute no more after a candidate; it is in the journal.
        """
        times: dict[Any, float] = {}
        for candidate in candidates:
            us, reason = self._try(site, candidate, problem, calls)
            if us is not None:
                times[candidate] = us
            self.trials.append(Trial(site=site, candidate=candidate._asdict(), us=us, why_not=reason))
        apart = {each: us for each, us in times.items() if not each.overlapped}
        over = {each: us for each, us in times.items() if each.overlapped}
        default = candidates[0] if candidates[0] in times else None
        return Choice(*_least(times), *_least(apart), *_least(over), default)

    def refuse(self, site: str, candidate: Mapping[str, Any], reason: str) -> None:
        """Record what was found wrong otherwise."""
        self.trials.append(Trial(site=site, candidate=candidate, us=None, why_not=reason))

    def _try(
        self, site: str, candidate: Any, problem: Callable[[Any], str], calls: Callable[[Any], Sequence[Call]]
    ) -> tuple[float | None, str]:
        name = f"{site} {json.dumps(candidate._asdict(), sort_keys=True)}"
        if name in self._journal.fatal:
            return None, "the device was lost, or processes died, while this was tried"
        self._journal.begin(name)
        try:
            reason = problem(candidate)
            return (None, reason) if reason else (round(self._timer(calls(candidate)), 3), "")
        except FAILURES as error:
            if torch.cuda.is_available():
                torch.cuda.synchronize()  # raises where the device is lost; the journal knows of what
            first = str(error).strip().partition("\n")[0]
            return None, f"{type(error).__name__}: {first[:200]}"
        finally:
            if device_lost():
                self._journal.blame()
            else:
                self._journal.end()


def device_lost() -> bool:
    """Whether the device computes no more."""
    if not torch.cuda.is_available():
        return False
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False


def _least(times: Mapping[Any, float]) -> tuple[Any, float]:
    best = min(times, key=lambda each: times[each], default=None)
    return best, float("inf") if best is None else times[best]


def marked(trials: Sequence[Trial], chosen: Mapping[str, Sequence[Mapping[str, Any]]]) -> tuple[Trial, ...]:
    """Trials with those marked that serve; `chosen` are candidates by site."""
    return tuple(
        Trial(
            site=trial.site,
            candidate=trial.candidate,
            us=trial.us,
            chosen=not trial.why_not and trial.candidate in chosen.get(trial.site, ()),
            why_not=trial.why_not,
        )
        for trial in trials
    )


def graph_timer(calls: Sequence[Call]) -> float:
    """Microseconds of a call in a CUDA graph of all of them, again and again: the median of replays, by the device's clock."""
    calls = list(calls)
    for call in calls:  # compiles, and warms up
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        kept = [call() for call in calls * max(1, min(8, _MOST_CALLS // len(calls)))]
    graph.replay()
    once = _elapsed(graph, 1)
    rounds = max(1, min(50, int(_LEAST_US / max(once, 1.0))))
    return statistics.median(_elapsed(graph, rounds) for _ in range(_REPEATS)) / rounds / len(kept)


def _elapsed(graph: torch.cuda.CUDAGraph, rounds: int) -> float:
    """Microseconds of so many replays."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    begin.record()
    for _ in range(rounds):
        graph.replay()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) * 1e3
