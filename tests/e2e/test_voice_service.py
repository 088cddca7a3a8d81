"""A conversation in speech with a real service and the real small models; engines are killed in it, and the service stops."""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from scripts.service import DeviceService, is_engine
from tests.api.realtime.world import Client
from tests.e2e.service import new_home, running
from tests.recordings import hearing_home, words

MODELS = {"transcription_model": "whisper-tiny.en", "speech_model": "piper-joe"}
_TIMEOUT_S = 240
_STEP_S = 0.1

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("espeak-ng") is None, reason="the package espeak-ng is not installed"),
]


@pytest.fixture(scope="module")
def service() -> Iterator[DeviceService]:
    hearing_home("silero-vad", *MODELS.values())
    with new_home() as home, running(home=home) as started:
        yield started


@pytest.fixture(scope="module")
def question(service: DeviceService) -> bytes:
    body = {"model": MODELS["speech_model"], "input": "What is the capital of France?", "response_format": "pcm"}
    answer = httpx.post(f"{service.url}/v1/audio/speech", json=body, timeout=_TIMEOUT_S, trust_env=False)
    assert answer.status_code == 200, answer.text
    return answer.content


@asynccontextmanager
async def _session(service: DeviceService) -> AsyncIterator[Client]:
    query = "&".join(f"{name}={value}" for name, value in MODELS.items())
    url = service.url.replace("http", "ws", 1)
    async with connect(f"{url}/v1/realtime?{query}", proxy=None, open_timeout=_TIMEOUT_S) as socket:
        client = Client(socket)
        await client.until("session.created", _TIMEOUT_S)
        yield client


@asynccontextmanager
async def _speaking(client: Client, sound: bytes) -> AsyncIterator[None]:
    """Speaks, then is silent, in pieces as a microphone would; ended with the block."""

    async def speak() -> None:
        size = int(24_000 * _STEP_S) * 2
        at = 0
        while True:
            piece = sound[at : at + size].ljust(size, b"\0")
            at += size
            await client.send("input_audio_buffer.append", audio=base64.b64encode(piece).decode())
            await asyncio.sleep(_STEP_S)

    task = asyncio.create_task(speak())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def _check(client: Client, done: dict[str, Any]) -> None:
    heard = client.of("conversation.item.input_audio_transcription.completed")[-1]
    assert "capital of france" in words(heard["transcript"])
    assert done["status"] == "completed", done
    assert "paris" in words(done["output"][0]["content"][0]["transcript"])
    receipt = done["edgewise"]
    assert receipt["answer"]["model"] == "smollm2-135m-instruct"
    assert receipt["answer"]["priority"] == "realtime"
    assert receipt["transcription"]["model"] == "whisper-tiny.en"
    assert receipt["speech_ms"] > 500
    assert len(client.audio()) == pytest.approx(receipt["speech_ms"] * 48, rel=0.01)


async def test_a_spoken_question_is_answered_also_after_its_engines_were_killed(
    service: DeviceService, question: bytes
) -> None:
    async with _session(service) as client, _speaking(client, question):
        _check(client, (await client.until("response.done", _TIMEOUT_S))["response"])
    engines = [one for one in service.children() if is_engine(one)]
    assert len(engines) == 4
    async with _session(service) as client, _speaking(client, question):
        await client.until("input_audio_buffer.speech_started", _TIMEOUT_S)
        for engine in engines:
            engine.kill()
        _check(client, (await client.until("response.done", _TIMEOUT_S))["response"])


async def test_a_service_that_stops_tells_its_sessions(service: DeviceService) -> None:
    async with _session(service) as client:
        service.terminate()
        assert (await client.until("error", _TIMEOUT_S))["error"]["code"] == "shutting_down"
        with pytest.raises(ConnectionClosed):
            json.loads(await client.socket.recv())
