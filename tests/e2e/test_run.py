"""`make run` itself: the demo's three acts, the end after them, Ctrl-C, a taken port, a service that does not start."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.service import free_port
from tests.accept.cloud_1 import faults
from tests.e2e.service import new_home, thread_limit

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def home() -> Iterator[Path]:
    with new_home() as made:
        yield made


def start(home: Path, *flags: str) -> subprocess.Popen[str]:
    """The script as make starts it; tests share cores, so the engine's threads are limited by its configuration file."""
    config = home / "run.toml"
    limit = thread_limit().get("EDGEWISE_ENGINE__THREADS")
    config.write_text(f"[engine]\nthreads = {limit}\n" if limit else "")
    return subprocess.Popen(
        [sys.executable, "-m", "scripts.run", "--home", str(home), *flags, "--config", str(config)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def test_once_does_the_three_acts_and_prints_their_receipts(home: Path) -> None:
    with start(home, "--once", "--port", str(free_port())) as run:
        output, _ = run.communicate(timeout=280)
    assert faults(run.returncode, output) == [], output
    assert "> What is the capital of France?\nThe capital of France is Paris." in output
    assert "tokens/s, first text after" in output
    assert "from start to answer: " in output
    assert "the service ended with code 0" in output


def test_it_serves_until_interrupted(home: Path) -> None:
    port = free_port()
    with start(home, "--port", str(port)) as run:
        assert run.stdout is not None
        for line in run.stdout:
            if "Ctrl-C ends it" in line:
                break
        with socket.create_connection(("127.0.0.1", port), timeout=10):
            pass
        os.kill(run.pid, signal.SIGINT)
        output, _ = run.communicate(timeout=60)
    assert run.returncode == 0, output
    assert "the service ended with code 0" in output


def test_a_port_that_was_asked_for_and_is_taken_is_an_error_that_names_the_owner(home: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with start(home, "--once", "--port", str(taken.getsockname()[1])) as run:
            output, _ = run.communicate(timeout=60)
    assert run.returncode == 1
    assert f"is taken by {Path(f'/proc/{os.getpid()}/comm').read_text().strip()} (process {os.getpid()})" in output


def test_a_service_that_does_not_start_is_an_error_with_the_reason(home: Path) -> None:
    with start(home, "--once", "--port", str(free_port()), "--dtype", "nonsense") as run:
        output, _ = run.communicate(timeout=60)
    assert run.returncode == 3
    assert "edgewise: the service ended with code" in output
    assert "dtype" in output
