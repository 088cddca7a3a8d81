"""A device's process that is killed: the engine says why, is started again and goes on with the same tokens; none is left."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import pytest_asyncio

from edgewise.engine.client import EngineClient
from edgewise.engine.config import EngineConfig
from edgewise.engine.events import EngineEvent
from edgewise.engine.request import GenerateRequest, SamplingParams
from edgewise.models.files import ModelFiles
from tests.engine.process.conftest import QUICK
from tests.fakes.adapters import adapter_files, make_adapter

REQUEST = GenerateRequest(
    id="a", prompt=tuple(range(40, 80)), sampling=SamplingParams(max_tokens=180, temperature=0.9, seed=3)
)
LOST = "device 1 of 2 has ended"
STEP_S = 8.0
PATIENT = replace(QUICK, limits=replace(QUICK.limits, step_s=STEP_S))


def members_of(client: EngineClient) -> list[psutil.Process]:
    """Processes of the other devices."""
    assert client.pid is not None
    return psutil.Process(client.pid).children()


class Running:
    """A client, and what its supervision has said."""

    def __init__(self, files: ModelFiles) -> None:
        self.crashes: list[str] = []
        self.crashed = asyncio.Event()
        config = EngineConfig(
            model=files,
            device="cpu",
            dtype="float32",
            kv_dtype="int8",
            kv_memory_bytes=2**21,
            max_context=256,
            threads=2,
            tensor_parallel=2,
            adapters=True,
        )
        self.client = EngineClient(config, timings=PATIENT, on_event=self._told)

    def _told(self, event: EngineEvent) -> None:
        if event.kind == "crashed":
            self.crashes.append(event.message)
            self.crashed.set()

    async def tokens(
        self, request: GenerateRequest = REQUEST, *, kill_at: int | None = None, with_signal: int = signal.SIGKILL
    ) -> list[int]:
        """The answer; a device's process gets a signal when so many tokens have come."""
        tokens: list[int] = []
        async for chunk in await self.client.submit(request):
            assert chunk.finish in (None, "length"), chunk.error_message
            assert chunk.offset == len(tokens)
            tokens += chunk.tokens
            if kill_at is not None and len(tokens) >= kill_at:
                kill_at = None
                members_of(self.client)[0].send_signal(with_signal)
        assert kill_at is None
        return tokens


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(tiny_model: ModelFiles) -> AsyncIterator[Running]:
    made = Running(tiny_model)
    await made.client.start()
    try:
        await made.client.wait_ready(120.0)
        yield made
    finally:
        await made.client.stop()


async def gone(processes: list[psutil.Process], timeout_s: float = 30.0) -> bool:
    until = time.monotonic() + timeout_s
    while any(one.is_running() and one.status() != psutil.STATUS_ZOMBIE for one in processes):
        if time.monotonic() > until:
            return False
        await asyncio.sleep(0.02)
    return True


@pytest.mark.asyncio(loop_scope="module")
async def test_killed_in_the_middle_of_an_answer(running: Running) -> None:
    whole = await running.tokens()
    before = [psutil.Process(running.client.pid), *members_of(running.client)]
    assert len(before) == 2
    assert await running.tokens(kill_at=5) == whole
    assert LOST in running.crashes[-1]
    assert "SIGKILL" in running.crashes[-1]
    assert await gone(before)
    assert len(members_of(running.client)) == 1


@pytest.mark.asyncio(loop_scope="module")
async def test_killed_while_there_is_nothing_to_do(running: Running) -> None:
    """Nobody waits for a step that would fail: the engine notices by itself."""
    whole, pid = await running.tokens(), running.client.pid
    running.crashed.clear()
    members_of(running.client)[0].send_signal(signal.SIGKILL)
    await asyncio.wait_for(running.crashed.wait(), 60)
    assert LOST in running.crashes[-1]
    await running.client.wait_ready(120.0)
    assert await running.tokens() == whole
    assert running.client.pid != pid


@pytest.mark.asyncio(loop_scope="module")
async def test_lost_while_a_request_is_taken(running: Running, tiny_model: ModelFiles, tmp_path: Path) -> None:
    """The first message to the others is about the request's adapter: that it breaks off is no fault of the request's."""
    folder = make_adapter(tmp_path / "adapter", tiny_model.paths["config.json"].parent, size=1.0)
    request = replace(REQUEST, adapter=adapter_files(folder))
    lost, pid = members_of(running.client), running.client.pid
    lost[0].send_signal(signal.SIGKILL)
    assert await gone(lost)
    tokens = await running.tokens(request)
    assert LOST in running.crashes[-1]
    assert running.client.pid != pid
    assert tokens == await running.tokens(request) != await running.tokens()


@pytest.mark.asyncio(loop_scope="module")
async def test_one_that_hangs_is_killed_with_the_engine(running: Running) -> None:
    """An exchange with it never ends; the service finds that a step takes too long."""
    whole = await running.tokens()
    before = members_of(running.client)
    assert await running.tokens(kill_at=5, with_signal=signal.SIGSTOP) == whole
    assert f"limit {STEP_S:g} s" in running.crashes[-1]
    assert await gone(before)


@pytest.mark.asyncio(loop_scope="module")
async def test_a_killed_leader_takes_the_others_along(running: Running) -> None:
    members = members_of(running.client)
    assert running.client.pid is not None
    os.kill(running.client.pid, signal.SIGKILL)
    assert members
    assert await gone(members)
