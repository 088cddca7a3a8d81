"""The picture engine as a process: the real worker, supervisor and client around a tiny random model."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from edgewise.engine.pictures.client import PictureClient
from edgewise.engine.pictures.config import PictureConfig
from edgewise.engine.pictures.request import DiffuseChunk, DiffuseParams, DiffuseRequest, PictureStream
from edgewise.models.diffusion.starter.tiny import make_tiny_pictures
from edgewise.models.tiny import local_files


@pytest_asyncio.fixture
async def client(tmp_path: Path) -> AsyncIterator[PictureClient]:
    files = local_files(make_tiny_pictures(tmp_path / "model"))
    client = PictureClient(PictureConfig(model=files, device="cpu", threads=1, turns=str(tmp_path / "turns")))
    await client.start()
    await client.wait_ready(120.0)
    yield client
    await client.stop()


def ask(name: str, steps: int = 4) -> DiffuseRequest:
    return DiffuseRequest(id=name, params=DiffuseParams(prompt="a blue dog", steps=steps, seed=9))


async def read(stream: PictureStream) -> list[DiffuseChunk]:
    return [chunk async for chunk in stream]


async def test_two_requests_at_once_are_both_answered(client: PictureClient) -> None:
    streams = [await client.submit(ask(name)) for name in "ab"]
    answers = await asyncio.gather(*map(read, streams))
    assert [chunks[-1].finish for chunks in answers] == ["done", "done"]
    assert client.info is not None
    assert client.info.step_s > 0


async def test_a_picture_outlives_the_engine_and_is_the_same(client: PictureClient) -> None:
    undisturbed = await read(await client.submit(ask("a", 60)))
    stream = await client.submit(ask("b", 60))
    chunks: list[DiffuseChunk] = []
    async for chunk in stream:
        chunks.append(chunk)
        if chunk.offset == 20 and client.pid is not None:
            os.kill(client.pid, signal.SIGKILL)
    assert chunks[-1].finish == "done"
    assert chunks[-1].picture == undisturbed[-1].picture
    assert chunks[-1].stats is not None
    assert chunks[-1].stats.restarts == 1
    reached = 0
    for chunk in chunks:
        assert chunk.offset == reached, "progress never goes back"
        reached += chunk.count
    assert reached == 60


async def test_a_consumer_that_leaves_ends_the_drawing(client: PictureClient) -> None:
    stream = await client.submit(ask("a", 200))
    assert (await stream.__anext__()).count >= 1
    await stream.aclose()
    (last,) = (await read(await client.submit(ask("b", 1))))[-1:]
    assert last.finish == "done"
    stats = await client.stats()
    assert stats.aborted == 1
    assert stats.steps < 200
