"""Shows how far a pull, import or verify is: bars on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.progress import Progress as Bars

from edgewise.models.progress import Progress, ProgressSink, no_progress


@contextmanager
def progress_sink(*, show: bool, out: TextIO | None = None) -> Iterator[ProgressSink]:
    """A sink that draws on `out` (standard error by default), or shows nothing."""
    stream = sys.stderr if out is None else out
    if not show:
        yield no_progress
    elif stream.isatty():
        with _bars(stream) as bars:
            yield _BarSink(bars)
    else:
        yield _LineSink(stream)


def _bars(stream: TextIO) -> Bars:
    return Bars(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=Console(file=stream),
    )


class _BarSink:
    """One bar per phase and item."""

    def __init__(self, bars: Bars) -> None:
        self._bars = bars
        self._tasks: dict[tuple[str, str], TaskID] = {}

    def __call__(self, report: Progress) -> None:
        key = (report.phase, report.item)
        if key not in self._tasks:
            self._tasks[key] = self._bars.add_task(f"{report.phase} {report.item}", total=report.total)
        self._bars.update(self._tasks[key], completed=report.done, total=report.total)


class _LineSink:
    """A line when an item begins, at every further quarter, and at its end."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._quarter: dict[tuple[str, str], int] = {}

    def __call__(self, report: Progress) -> None:
        key = (report.phase, report.item)
        quarter = 4 * report.done // report.total if report.total else 0
        if self._quarter.get(key, -1) < quarter:
            self._quarter[key] = quarter
            of = f" of {report.total}" if report.total is not None else ""
            self._stream.write(f"{report.phase} {report.item}: {report.done}{of} bytes\n")
            self._stream.flush()
