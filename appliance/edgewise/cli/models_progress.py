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
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.progress import Progress as Bars
from rich.table import Column

from edgewise.core.sizes import file_size
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


_ROOMY = 100  # columns that a whole bar needs beside the longest file name that is common


def _bars(stream: TextIO) -> Bars:
    console = Console(file=stream)
    if console.width < _ROOMY:  # the name may be cut, the figures not
        name = Column(ratio=1, no_wrap=True, overflow="ellipsis")
        text = TextColumn("{task.description}", markup=False, table_column=name)
        figures = (BarColumn(bar_width=8), TaskProgressColumn(), DownloadColumn(table_column=Column(no_wrap=True)))
        return Bars(text, *figures, console=console, expand=True)
    return Bars(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=console,
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
            of = f" of {file_size(report.total)}" if report.total is not None else ""
            self._stream.write(f"{report.phase} {report.item}: {file_size(report.done)}{of}\n")
            self._stream.flush()
