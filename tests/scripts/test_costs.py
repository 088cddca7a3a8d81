"""The table of what tests cost, on a tiny suite, in one process and in several."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

SUITE = """
import subprocess, sys, time

WORK = "import time\\nwhile time.process_time() < 0.3: pass"

def test_of_its_own():
    end = time.process_time() + 0.3
    while time.process_time() < end:
        pass

def test_of_a_process():
    subprocess.run([sys.executable, "-c", WORK], check=True)

def test_that_waits():
    time.sleep(0.3)
"""


@pytest.mark.parametrize("flags", [(), ("-n2",)])
def test_time_of_tests_and_of_their_processes_is_told_and_waiting_is_none(
    tmp_path: Path, flags: tuple[str, ...]
) -> None:
    (tmp_path / "test_tiny.py").write_text(SUITE)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "scripts.costs",
        *flags,
        str(tmp_path),
    ]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    told = {
        name: float(seconds) for seconds, name in re.findall(r"^ +([\d.]+)  \S+::(\w+)$", done.stdout, re.MULTILINE)
    }
    assert told["test_of_its_own"] >= 0.3
    assert told["test_of_a_process"] >= 0.3
    assert told["test_that_waits"] < min(told["test_of_its_own"], told["test_of_a_process"])
