"""`make run` itself: the demo's three acts, the end after them, Ctrl-C, a taken port, a service that does not start."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from scripts.service import edgewise_command, edgewise_environment, free_port
from tests.accept.cloud_1 import faults
from tests.e2e.pair import import_pictures
from tests.e2e.service import import_tiny, new_home, suite_limits

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def home() -> Iterator[Path]:
    with new_home() as made:
        yield made


def start(home: Path, *flags: str) -> subprocess.Popen[str]:
    """The script as make starts it; tests share cores, so the threads of both engines are limited."""
    return subprocess.Popen(
        [sys.executable, "-m", "scripts.run", "--home", str(home), *flags],
        cwd=ROOT,
        env={**os.environ, **suite_limits()},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def shown(output: str) -> dict[str, Any]:
    """The device as the demo's fleet shows it, once it has told how fast it answered."""
    found = re.search(r"console on (\S+) \(log in as (\S+) with (\S+)\)", output)
    assert found is not None, output
    url, name, password = found.groups()
    with httpx.Client(base_url=f"{url}/fleet/v1", timeout=60) as client:
        token = client.post("login", json={"name": name, "password": password, "cookie": False}).json()["token"]
        limit = time.monotonic() + 60
        while time.monotonic() < limit:
            (device,) = client.get("devices", headers={"Authorization": f"Bearer {token}"}).json()["items"]
            if device["gauges"].get("tokens_per_s"):
                return dict(device)
            time.sleep(0.5)
    raise AssertionError(f"no speed is shown: {device}")


def test_it_does_the_three_acts_prints_their_receipts_and_serves_until_interrupted(home: Path) -> None:
    port, lines = free_port(), []
    with start(home, "--port", str(port), "--console-port", str(free_port())) as run:
        assert run.stdout is not None
        for line in run.stdout:
            lines.append(line)
            if "Ctrl-C ends it" in line:
                break
        with socket.create_connection(("127.0.0.1", port), timeout=60):
            pass
        device = shown("".join(lines))
        os.kill(run.pid, signal.SIGINT)
        rest, _ = run.communicate(timeout=120)
    output = "".join(lines) + rest
    assert faults(run.returncode, output) == [], output
    assert "> What is the capital of France?\nThe capital of France is Paris." in output
    assert "tokens/s, first text after" in output
    assert "from start to answer: " in output
    assert "the service ended with code 0" in rest
    assert device["state"] == "online"
    assert "smollm2-135m-instruct" in [model["name"] for model in device["models"]]
    assert device["gauges"]["tokens_per_s"] > 0  # those of the acts


def test_once_ends_after_the_acts() -> None:
    """On tiny models, for which no answer is known, and on kernels that are slow enough for a link to be cut in an answer."""
    with new_home(starter=False) as home:
        import_tiny(home)
        import_pictures(home, "pictures")
        flags = [
            "--once",
            "--console-port",
            str(free_port()),
            "--model",
            "tiny",
            "--picture-model",
            "pictures",
            "--out",
            str(home),
        ]
        environment = edgewise_environment(home, {**suite_limits(), "EDGEWISE_ENGINE__KERNELS": "reference"})
        run = subprocess.run(
            edgewise_command("demo", *flags),
            env=environment,
            check=False,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=280,
        )
        wrong = [fault for fault in faults(run.returncode, run.stdout) if not fault.startswith("act 1")]
    assert wrong == [], run.stdout
    assert "the service ended with code 0" in run.stdout


def test_a_port_that_was_asked_for_and_is_taken_is_an_error_that_names_the_owner(home: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with start(home, "--once", "--port", str(taken.getsockname()[1])) as run:
            output, _ = run.communicate(timeout=120)
    assert run.returncode == 1
    assert f"is taken by {Path(f'/proc/{os.getpid()}/comm').read_text().strip()} (process {os.getpid()})" in output


def test_a_service_that_does_not_start_is_an_error_with_the_reason(home: Path) -> None:
    with start(home, "--once", "--port", str(free_port()), "--dtype", "nonsense") as run:
        output, _ = run.communicate(timeout=120)
    assert run.returncode == 3
    assert "edgewise: the service ended with code" in output
    assert "dtype" in output
