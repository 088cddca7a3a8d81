"""Answers in parts of a real engine process that is killed on the way."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from edgewise.engine.encoders.client import EncoderClient
from edgewise.engine.encoders.config import EncoderConfig
from edgewise.engine.encoders.request import EncodeChunk, EncodeRequest
from edgewise.models.files import ModelFiles
from tests.fakes import slow_spelling

TEXT = "every letter once"


@pytest.fixture
async def engine() -> AsyncIterator[EncoderClient]:
    model = ModelFiles(name="spelling", digest="sha256:0", format="onnx", paths={})
    config = EncoderConfig(model=model, role="text-to-speech", needs_bytes=1 << 20, max_running=1, threads=1)
    client = EncoderClient(config, factory=f"{slow_spelling.__file__}:build")
    await client.start()
    try:
        await client.wait_ready(60)
        yield client
    finally:
        await client.stop()


async def parts(engine: EncoderClient, request: EncodeRequest) -> list[EncodeChunk]:
    stream = await engine.submit(request)
    try:
        return [chunk async for chunk in stream]
    finally:
        await stream.aclose()


async def test_an_engine_that_dies_goes_on_at_the_part_that_is_missing(engine: EncoderClient, tmp_path: Path) -> None:
    options = {"die_at": 5, "marker": str(tmp_path / "died")}
    chunks = await parts(engine, EncodeRequest(id="r", content=TEXT.encode(), options=options))
    assert (tmp_path / "died").exists()
    assert b"".join(chunk.content for chunk in chunks).decode() == TEXT
    assert [chunk.offset for chunk in chunks] == list(range(len(TEXT)))
    assert [chunk.finish for chunk in chunks] == [None] * (len(TEXT) - 1) + ["done"]
    assert [chunk.stats.restarts for chunk in chunks if chunk.stats] == [0] * 5 + [1] * (len(TEXT) - 5)


async def test_a_reader_who_leaves_ends_the_rest(engine: EncoderClient) -> None:
    stream = await engine.submit(EncodeRequest(id="left", content=b"x" * 10_000))
    first = await anext(stream)
    assert (first.offset, first.content) == (0, b"x")
    await stream.aclose()
    chunks = await parts(engine, EncodeRequest(id="next", content=b"ab"))  # behind all of them it would take minutes
    assert b"".join(chunk.content for chunk in chunks) == b"ab"
    assert (await engine.stats()).waiting == 0
