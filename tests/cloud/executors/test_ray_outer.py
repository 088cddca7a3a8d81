"""A Ray cluster that is there already, started as its operator would, on loopback: it is joined, used and left as it was."""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import AsyncMock

import psutil
import pytest

from edgewise.cloud.executors.ray import RayExecutor
from edgewise.cloud.executors.ray_cluster import RESOURCE
from edgewise.core.errors import EngineUnavailable
from edgewise.core.settings_links import IntakeSettings
from scripts.service import free_port
from tests.cloud.executors.test_ray import TwoModels, order, read, undisturbed

ENVIRONMENT = {
    **os.environ,
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": "an-operators-token-of-more-than-thirty-two-characters",
}


@dataclass
class Head:
    address: str
    process: subprocess.Popen[bytes]


def _family(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    return [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]


@pytest.fixture
def head() -> Iterator[Head]:
    """One with one place for a replica."""
    if importlib.util.find_spec("ray") is None:
        pytest.skip("ray is not installed here")
    with tempfile.TemporaryDirectory(prefix="ray-") as folder:
        started = _start(Path(folder))
        try:
            yield started
            assert started.process.poll() is None  # it is not ours to end
        finally:
            _end(started.process)


def _port() -> int:
    """A free one that is none of those that Ray keeps for its workers, 10002 to 19999: with such a one it does not start."""
    while (port := free_port()) < 20_000:
        pass
    return port


def _start(folder: Path, tries: int = 3) -> Head:
    """Listening. Ray takes further ports of its own choice: where another program was quicker, it ends and is started again."""
    port = _port()
    command = [str(Path(sys.executable).parent / "ray"), "start", "--head", "--block", f"--port={port}"]
    command += ["--node-ip-address=127.0.0.1", "--include-dashboard=false", "--num-cpus=1", "--num-gpus=0"]
    command += ["--object-store-memory=83886080", f"--temp-dir={folder / str(tries)}", "--disable-usage-stats"]
    command += [f'--resources={{"{RESOURCE}": 1}}']
    process = subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while process.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return Head(f"127.0.0.1:{port}", process)
        time.sleep(0.1)
    _end(process)
    assert tries > 1, f"ray start ends with code {process.returncode}"
    return _start(folder, tries - 1)


def _end(process: subprocess.Popen[bytes]) -> None:
    family = _family(process) if process.poll() is None else []
    process.terminate()  # it ends what it started
    _, alive = psutil.wait_procs(family, timeout=5)
    for one in alive:
        one.kill()
    process.wait()


DRIVER = """
import asyncio, json, sys
from edgewise.cloud.executors.ray import RayExecutor
from edgewise.core.errors import EngineUnavailable
from tests.cloud.executors.test_ray import FAKE_CORE, TwoModels, order, read, tokens_of
from tests.fakes.core import fake_config

async def config_of(model):
    return fake_config()

async def main():
    executor = RayExecutor(TwoModels(), config_of, replicas=1, address=sys.argv[1], factory=f"{FAKE_CORE}:build")
    executor.start()
    try:
        tokens = None
        while tokens is None:
            try:
                tokens = tokens_of(await read(executor, order("outer", 40)))
            except EngineUnavailable:  # the head listens before it is ready, and is tried again
                await asyncio.sleep(0.5)
        print(json.dumps([tokens, executor.places("fake")[0].opened.pid]))
        sys.stdin.readline()
    finally:
        await executor.stop()

asyncio.run(main())
"""


def test_a_cluster_that_is_there_is_joined_used_and_left(head: Head) -> None:
    """In a process of its own: a process has one token for all clusters of its life."""
    pipe = subprocess.PIPE
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, head.address], env=ENVIRONMENT, stdin=pipe, stdout=pipe, text=True
    )
    try:
        assert driver.stdout is not None
        tokens, pid = json.loads(driver.stdout.readline())
        assert tuple(tokens) == undisturbed(40)
        assert pid in {one.pid for one in _family(head.process)}  # there, not below a Ray of our own
        driver.communicate("done\n", timeout=60)
        assert driver.returncode == 0
    finally:
        driver.kill()
        driver.wait()
    psutil.wait_procs([psutil.Process(pid)] if psutil.pid_exists(pid) else [], timeout=30)
    assert not psutil.pid_exists(pid)  # its actors end with it; the fixture looks at the cluster


async def test_one_that_does_not_answer_is_named() -> None:
    if importlib.util.find_spec("ray") is None:
        pytest.skip("ray is not installed here")
    address = f"127.0.0.1:{free_port()}"
    executor = RayExecutor(TwoModels(), AsyncMock(), replicas=1, address=address)
    executor.start()
    with pytest.raises(EngineUnavailable, match=f"No Ray cluster answers at {address}"):
        await read(executor, order("nobody"))
    await executor.stop()


@pytest.mark.parametrize("value", ["ray://10.0.0.5:10001", "10.0.0.5", "10.0.0.5:0", "10.0.0.5:x", ":6379", "a b:6379"])
def test_an_address_is_a_host_and_a_port(value: str) -> None:
    with pytest.raises(ValueError, match="host:port"):
        IntakeSettings(ray_address=value)


def test_an_engine_of_the_site_has_its_cluster_there() -> None:
    with pytest.raises(ValueError, match="private address"):
        IntakeSettings(site=True, executor="ray", ray_address="203.0.113.9:6379")
    for address in ("192.168.1.5:6379", "[fd00::1]:6379"):
        assert IntakeSettings(site=True, executor="ray", ray_address=address).ray_address == address
