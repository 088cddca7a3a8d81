"""A confined child is asked within a time, by a service that has many files open."""

from __future__ import annotations

import contextlib
import os
import resource
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import IO

import pytest

from edgewise.core import confined as confined_module
from edgewise.core.confined import ChildEndedError, ConfinedChild

CHILD = """
import os, signal, sys, time
from edgewise.core import confined as confined_module
from edgewise.core.confined import serve

def answer(body):
    with open(os.environ["ASKED"], "a") as asked:
        asked.write("x")
    if body == b"sleep":
        time.sleep(60)
    if body == b"die":
        os.kill(os.getpid(), signal.SIGKILL)
    return body[::-1]

if "deaf" in os.environ.get("CHILD", ""):
    time.sleep(60)
serve(answer, address_space=8 << 30, cpu_s=30.0)
"""


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The child writes a letter into this file for each request."""
    (tmp_path / "confined_child.py").write_text(CHILD)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("ASKED", str(tmp_path / "asked"))
    return tmp_path / "asked"


@contextlib.contextmanager
def confined(wall_s: float = 60.0) -> Iterator[ConfinedChild]:
    child = ConfinedChild("confined_child", wall_s=wall_s)
    try:
        yield child
    finally:
        child.close()


@pytest.mark.usefixtures("asked")
def test_a_long_request_is_answered_by_a_service_with_many_files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 1100 if hard == resource.RLIM_INFINITY else min(1100, hard)
    if wanted < 1100:
        pytest.skip("the system allows fewer files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    held: list[int] = []
    try:
        while not held or held[-1] < 1030:
            held.append(os.open(os.devnull, os.O_RDONLY))
        with confined() as child:
            body = bytes(range(256)) * 8192
            assert child.ask(body) == body[::-1]
    finally:
        for one in held:
            os.close(one)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_request_that_gets_no_answer_in_time_is_not_asked_again(asked: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its time is up once it has been asked, however long that took."""
    clock, read = SimpleNamespace(seconds=0.0), confined_module._read
    waits: list[float] = []

    def read_too_late(stream: IO[bytes], count: int, deadline: float) -> bytes | None:
        waits.append(deadline)
        limit = time.monotonic() + 60.0
        while asked.read_text() != "xx":
            assert time.monotonic() < limit, "the child was not asked"
            time.sleep(0.005)
        clock.seconds = deadline
        return read(stream, count, deadline)

    with confined() as child:
        child.ask(b"awake")
        monkeypatch.setattr(confined_module, "time", SimpleNamespace(monotonic=lambda: clock.seconds))
        monkeypatch.setattr(confined_module, "_read", read_too_late)
        with pytest.raises(ChildEndedError):
            child.ask(b"sleep")
        assert asked.read_text() == "xx"
        assert len(waits) == 1


def test_a_child_that_someone_killed_is_asked_once_more(asked: Path) -> None:
    with confined() as child:
        with pytest.raises(ChildEndedError):
            child.ask(b"die")
        assert asked.read_text() == "xx"
        assert child.ask(b"ab") == b"ba"


@pytest.mark.usefixtures("asked")
def test_a_child_that_reads_nothing_holds_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHILD", "deaf")
    with confined(0.5) as child, pytest.raises(ChildEndedError):
        child.ask(bytes(8 << 20))
