"""Processes that share a device: real files, real locks, real processes."""

from __future__ import annotations

import itertools
import json
import os
import signal
import struct
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from edgewise.core.errors import StorageError
from edgewise.engine.turns import ROWS, PictureTurns, State, Table, TextTurns
from tests.security.test_full_disk import fill

PROLOGUE = """
import json, sys, time
from pathlib import Path
from edgewise.engine.turns import PictureTurns, Table, TextTurns
path, log = Path(sys.argv[1]), Path(sys.argv[2]).open("a", buffering=1)
def work(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.0005)
def said(kind, began):
    log.write(json.dumps([kind, began, time.monotonic()]) + chr(10))
"""

TEXT = """
turns = TextTurns(Table(path))
while True:
    with turns.step():
        began = time.monotonic()
        work(0.01)
        said("text", began)
    turns.between()
"""

PICTURE = """
turns = PictureTurns(Table(path))
while True:
    with turns.slice():
        began = time.monotonic()
        work(float(sys.argv[3]))
        said(f"picture-{sys.argv[3]}", began)
"""


CUT = """
turns = PictureTurns(Table(path))
while True:
    whole = time.monotonic()
    with turns.slice():
        for _ in range(10):
            began = time.monotonic()
            work(0.003)
            said("picture", began)
            turns.cut()
    said("whole", whole)
"""


@contextmanager
def process(code: str, *arguments: object) -> Iterator[subprocess.Popen[bytes]]:
    source = PROLOGUE + textwrap.dedent(code)
    popen = subprocess.Popen([sys.executable, "-c", source, *map(str, arguments)])
    try:
        yield popen
    finally:
        popen.kill()
        popen.wait()


def events(log: Path) -> list[tuple[str, float, float]]:
    return (
        [tuple(json.loads(line)) for line in log.read_text().splitlines() if line.endswith("]")] if log.exists() else []
    )


def wait_for(log: Path, kind: str, count: int) -> None:
    deadline = time.monotonic() + 120
    while sum(name.startswith(kind) for name, _, _ in events(log)) < count:
        assert time.monotonic() < deadline, f"{kind} got no turn"
        time.sleep(0.05)


def overlaps(found: list[tuple[str, float, float]]) -> int:
    """Slices of pictures that ran while something else did."""
    spans = sorted((began, ended, name) for name, began, ended in found)
    return sum(
        after[0] < before[1] - 1e-4 and ("picture" in before[2] or "picture" in after[2])
        for before, after in itertools.pairwise(spans)
    )


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return tmp_path / "turns"


def test_texts_and_pictures_never_run_at_once_and_both_get_on(table: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with process(TEXT, table, log), process(PICTURE, table, log, 0.003):
        wait_for(log, "text", 100)
        wait_for(log, "picture", 30)
    assert overlaps(events(log)) == 0


def test_long_slices_come_in_bursts(table: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with process(TEXT, table, log), process(PICTURE, table, log, 0.03):
        wait_for(log, "picture", 4)
        wait_for(log, "text", 100)
    found = [name for name, _, _ in sorted(events(log), key=lambda event: event[1])]
    texts_alone = found[found.index("text") :]
    bursts = [run for run in "".join("p" if n != "text" else "t" for n in texts_alone).split("p") if run]
    assert all(len(run) >= 24 for run in bursts[1:-1]), bursts


def test_texts_go_on_between_the_parts_of_a_slice_that_is_cut(table: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"

    def parted() -> list[tuple[str, float, float]]:
        found = events(log)
        texts = [event for event in found if event[0] == "text"]
        return [
            one for one in found if one[0] == "whole" and any(one[1] < text[1] < text[2] < one[2] for text in texts)
        ]

    with process(TEXT, table, log), process(CUT, table, log):
        deadline = time.monotonic() + 120
        while len(parted()) < 5:
            assert time.monotonic() < deadline, "texts waited for whole slices"
            time.sleep(0.05)
    assert overlaps([event for event in events(log) if event[0] != "whole"]) == 0
    alone = PictureTurns(Table(table))
    alone.cut()  # outside of a slice
    with alone.slice():
        pass


def test_two_text_engines_and_a_picture_all_get_on(table: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with process(TEXT, table, log), process(TEXT, table, log), process(PICTURE, table, log, 0.002):
        wait_for(log, "text", 100)
        wait_for(log, "picture", 20)


def test_two_picture_engines_alternate_where_nobody_writes(table: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with process(PICTURE, table, log, 0.004), process(PICTURE, table, log, 0.005):
        wait_for(log, "picture-0.004", 30)
        wait_for(log, "picture-0.005", 30)
    assert overlaps(events(log)) == 0


@pytest.mark.parametrize("victim", ["text", "picture"])
def test_a_process_that_dies_in_its_turn_blocks_nobody(table: Path, tmp_path: Path, victim: str) -> None:
    log = tmp_path / "log"
    with process(TEXT, table, log) as text, process(PICTURE, table, log, 0.003) as picture:
        wait_for(log, "picture", 5)
        killed = text if victim == "text" else picture
        os.kill(killed.pid, signal.SIGKILL)
        killed.wait()
        count = len(events(log))
        wait_for(log, "picture" if victim == "text" else "text", count + 50)


def test_a_row_of_a_dead_process_is_used_again(table: Path) -> None:
    ours = Table(table)
    child = subprocess.run(
        [sys.executable, "-c", f"from edgewise.engine.turns import *; Table(Path({str(table)!r})).state = State.WAITS"],
        check=True,
    )
    assert child.returncode == 0
    assert ours.others(State.WAITS) == []
    again = Table(table)
    assert "row=1" in repr(again)
    again.close()
    ours.close()


def test_rows_that_nobody_holds_count_for_nothing_though_their_processes_numbers_live(table: Path) -> None:
    row = (float(os.getpid()), float(State.WAITS), 1.0, 3.0, 0.0, 0.0, 0.0, 0.0)  # as a power cut leaves it
    table.write_bytes(struct.pack("8d", *row) * ROWS)
    first = Table(table)
    assert "row=0" in repr(first)
    assert first.others(State.WAITS) == []
    tables = [Table(table) for _ in range(ROWS - 1)]
    with pytest.raises(StorageError, match="More than"):
        Table(table)
    for one in (first, *tables):
        one.close()


def test_on_a_full_disk_it_is_an_error_and_no_signal(small_disk: Path) -> None:
    ballast = fill(small_disk)
    with pytest.raises(StorageError, match="No space"):
        Table(small_disk / "turns")
    ballast.unlink()
    Table(small_disk / "turns").close()


def test_alone_on_the_device_nobody_waits(table: Path) -> None:
    pictures = PictureTurns(Table(table))
    began = time.monotonic()
    for _ in range(100):
        with pictures.slice():
            pass
    pictures.idle()
    text = TextTurns(Table(table))
    for _ in range(100):
        with text.step():
            pass
        text.between()
    assert time.monotonic() - began < 30
