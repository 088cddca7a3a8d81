"""What an acceptance line is, and how one is run: `python -m tests.accept.answers_2 [--count K] [--json]`."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


class NotRun(Exception):
    """The line cannot be run here (say, it needs root); the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A line's outcome.

    Attributes:
        figure: To set beside the bar.
        passed: Whether it meets it.
        correct: Whether all of it does that few trials on a shared machine can tell, so not its times, nor how memory grows;
            None where that is everything. The test suite asks for this alone.
        details: What else was measured.
    """

    figure: str
    passed: bool
    correct: bool | None = None
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One acceptance line.

    Attributes:
        number: Its number in the list it belongs to.
        title: What is claimed.
        bar: What the figure must meet.
        count: How many trials the full run makes.
        small: How many the test suite makes.
        measure: Does it, for a number of trials.
    """

    number: int
    title: str
    bar: str
    count: int
    small: int
    measure: Callable[[int], Verdict]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A line that was run, as reported."""

    number: int
    title: str
    command: str
    count: int
    figure: str
    bar: str
    passed: bool
    seconds: float
    details: Mapping[str, Any]


def progress(text: str) -> None:
    """Say how far a line has got; on standard error, since standard output is the report."""
    print(f"  .. {text}", file=sys.stderr, flush=True)


def run(line: Line, count: int, command: str) -> Outcome:
    """Measure a line; a line that could not be run has not passed."""
    began = time.monotonic()
    try:
        verdict = line.measure(count)
    except NotRun as reason:
        verdict = Verdict(figure=f"not run: {reason}", passed=False)
    return Outcome(
        number=line.number,
        title=line.title,
        command=command,
        count=count,
        figure=verdict.figure,
        bar=line.bar,
        passed=verdict.passed,
        seconds=round(time.monotonic() - began, 1),
        details=verdict.details,
    )


def load(module: str) -> Line:
    """The line that a module defines as LINE."""
    line = importlib.import_module(module).LINE
    assert isinstance(line, Line)
    return line


def main(line: Line, module: str) -> None:
    """Command line of one line; exits 0 if it passed."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=f"{line.number}. {line.title}")
    parser.add_argument("--count", type=int, default=line.count, help=f"trials (default: {line.count})")
    parser.add_argument("--json", action="store_true", help="report as JSON")
    args = parser.parse_args()
    outcome = run(line, args.count, f"python -m {module} --count {args.count}")
    if args.json:
        print(json.dumps(asdict(outcome), ensure_ascii=False))
    else:
        print(f"{outcome.number}. {outcome.title}")
        print(f"{'PASS' if outcome.passed else 'FAIL'}: {outcome.figure} (bar: {outcome.bar}; {outcome.seconds} s)")
    raise SystemExit(0 if outcome.passed else 1)
