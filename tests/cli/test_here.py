"""A command inside of the test's process says what it would say in one of its own."""

from __future__ import annotations

import ctypes
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Sequence

import pytest

from edgewise.core.log import get_logger

Run = Callable[..., "subprocess.CompletedProcess[str]"]


def speak(args: Sequence[str]) -> None:
    """A command that speaks in every way that there is."""
    get_logger("edgewise.here").info("unheard")
    get_logger("edgewise.here").warning("warned", of="a log")
    print("printed")
    print("complained", file=sys.stderr)
    ctypes.CDLL(None).printf(b"by C\n")
    os.write(2, b"by a number\n")
    subprocess.run([sys.executable, "-Sc", "import os; os.write(1, b'by a child\\n')"], check=True)
    sys.exit(len(args))


def test_all_that_a_command_says_is_heard_as_in_a_process_of_its_own(
    here: Run, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tests.cli.here.main", speak)
    handlers = logging.getLogger().handlers[:]
    done = here("one", "two")
    assert done.returncode == 2
    assert set(done.stdout.splitlines()) == {"printed", "by C", "by a child"}
    assert set(done.stderr.splitlines()) == {"warned", "complained", "by a number"}
    assert logging.getLogger().handlers == handlers
    print("after it")
    assert capfd.readouterr() == ("after it\n", "")
