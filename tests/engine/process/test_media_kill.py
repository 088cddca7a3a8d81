"""kill -9 while pictures are encoded, and in the middle of the answer over them: it goes on with the same tokens."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
import pytest_asyncio

from edgewise.core.errors import InvalidRequest, PayloadTooLarge
from edgewise.engine import messages, transport
from edgewise.engine.client import EngineClient
from edgewise.engine.request import GenerateRequest
from edgewise.models.files import ModelFiles
from edgewise.models.multimodal.families import read_layout
from edgewise.models.multimodal.layout import Layout
from tests.engine.process.conftest import QUICK
from tests.engine.test_engine_media import Part, ask, config_of, shown
from tests.models.multimodal.tiny_llava import tiny_llava

PICTURES = 40


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> ModelFiles:
    return tiny_llava(tmp_path_factory.mktemp("llava"))


@pytest.fixture(autouse=True)
def everything_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "LARGE_BYTES", 1000)


@pytest_asyncio.fixture
async def client(files: ModelFiles) -> AsyncIterator[EngineClient]:
    made = EngineClient(config_of(files), timings=replace(QUICK, patience_s=60.0))
    await made.start()
    try:
        await made.wait_ready(60.0)
        yield made
    finally:
        await made.stop()


def request_of(files: ModelFiles, name: str) -> GenerateRequest:
    """Its pictures count as large: they cross in shared memory, beside the message."""
    layout: Layout | None = read_layout(files)
    assert layout is not None
    parts: list[Part] = []
    for index in range(PICTURES):
        parts += [[index, index + 1], shown(layout, index)]
    request = ask(name, [*parts, [7]], max_tokens=30)
    assert len(messages.apart(messages.Submit.of(request))[1]) == PICTURES
    return request


async def tokens_of(client: EngineClient, request: GenerateRequest, *, kill_at: int | None) -> list[int]:
    """The answer's tokens; the engine is killed once so many have come, 0 before the first."""
    tokens: list[int] = []
    stream = await client.submit(request)
    killed = kill_at is None
    if kill_at == 0:
        killed = kill(client)
    async for chunk in stream:
        tokens += chunk.tokens
        assert chunk.finish in (None, "length"), chunk.error_message
        if not killed and kill_at is not None and len(tokens) >= kill_at:
            killed = kill(client)
    assert killed
    return tokens


def kill(client: EngineClient) -> bool:
    assert client.pid is not None
    os.kill(client.pid, signal.SIGKILL)
    return True


async def test_the_answer_goes_on(client: EngineClient, files: ModelFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    assert client.info is not None
    assert client.info.media == ("image",)
    request = request_of(files, "whole")
    with pytest.raises(InvalidRequest, match="its shape says"):
        await client.submit(replace(request, media=(replace(request.media[0], content=b""),)))
    with monkeypatch.context() as patch:
        patch.setattr(transport, "MAX_PAYLOAD", 50_000)
        with pytest.raises(PayloadTooLarge, match="send fewer or smaller pictures"):
            await client.submit(request)
    whole = await tokens_of(client, request, kill_at=None)
    assert len(whole) == 30
    assert (await client.stats()).encoder_cache_misses == PICTURES
    for kill_at in (0, 10):
        assert await tokens_of(client, replace(request, id=f"cut-{kill_at}"), kill_at=kill_at) == whole
