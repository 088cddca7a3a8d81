"""Speech of a real device service with a tiny voice, asked by OpenAI's own client."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import time
import wave
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import av
import httpx
import numpy as np
import openai
import pytest
from starlette.types import Message, Scope

from edgewise.api.audio.speech_writer import SoundStream
from edgewise.api.context import RequestContext, store_context
from edgewise.core.errors import EngineFault
from edgewise.models.media.sound_out import MEDIA_TYPES, PCM_RATE
from tests.e2e.service import edgewise, import_tiny, new_home, running
from tests.fakes.tiny_voice import NAMES, STEP, add_to_catalog, make_voice

SPEECH = "/v1/audio/speech"
LINES = "Hello world.\nOne two three!\nYes, good?"


@dataclass(frozen=True)
class Asked:
    url: str
    home: Path

    def post(self, headers: dict[str, str] | None = None, **body: Any) -> httpx.Response:
        return httpx.post(f"{self.url}{SPEECH}", json=body, headers=headers, timeout=60)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asked]:
    voice = make_voice(tmp_path_factory.mktemp("voice"))
    with new_home(starter=False) as home:
        import_tiny(home)
        add_to_catalog(voice, home, "tiny-voice")
        edgewise(home, "models", "pull", "tiny-voice")
        with running(model="tiny", home=home) as running_service:
            yield Asked(running_service.url, home)


def samples_of(data: bytes, format: str) -> Any:
    if format == "pcm":
        return np.frombuffer(data, dtype=np.int16)
    resampler = av.AudioResampler("s16", "mono", PCM_RATE)
    with av.open(io.BytesIO(data)) as container:
        frames = [one for frame in container.decode(audio=0) for one in resampler.resample(frame)]
    return np.concatenate([one.to_ndarray().reshape(-1) for one in frames])


def exact(service: Asked, text: str = LINES, **fields: Any) -> Any:
    return samples_of(service.post(input=text, response_format="pcm", **fields).content, "pcm")


def test_openais_client_gets_sound_in_every_format(service: Asked) -> None:
    client = openai.OpenAI(base_url=f"{service.url}/v1", api_key="unused")
    expected = exact(service)
    formats: tuple[Any, ...] = ("wav", "flac", "mp3", "opus", "aac", "pcm")
    for format in formats:
        answer = client.audio.speech.create(model="tiny-voice", voice=NAMES[0], input=LINES, response_format=format)
        assert answer.response.headers["content-type"] == MEDIA_TYPES[format]
        assert answer.response.headers["x-edgewise-model"] == "tiny-voice"
        assert answer.response.headers["x-edgewise-voice"] == NAMES[0]
        got = samples_of(answer.content, format)
        assert abs(len(got) - len(expected)) < 0.1 * PCM_RATE
        if format in ("wav", "flac", "pcm"):
            assert np.array_equal(got, expected)
    assert service.post(input="Yes.").headers["content-type"] == "audio/mpeg"  # where none is named


def test_all_lines_are_spoken_and_it_ends_after_the_text(service: Asked) -> None:
    whole = exact(service, LINES)
    lines = [exact(service, line) for line in LINES.splitlines()]
    assert len(whole) == sum(map(len, lines))
    few = exact(service, "One two three four one.")
    assert len(few) < 2 * PCM_RATE


def test_speech_begins_with_the_first_sentence(service: Asked) -> None:
    text = "Hello world. " + "One two three four. " * 40
    began: list[tuple[float, bytes]] = []
    body = {"input": text, "response_format": "pcm"}
    with httpx.stream("POST", f"{service.url}{SPEECH}", json=body, timeout=60) as answer:
        assert answer.headers["transfer-encoding"] == "chunked"
        began += [(time.monotonic(), piece) for piece in answer.iter_raw()]
    assert len(began) > 10
    whole = service.post(headers={"X-Edgewise-Receipt": "header"}, **body)
    assert b"".join(piece for _, piece in began) == whole.content


def test_a_file_of_known_length_says_it_and_a_stream_says_that_it_does_not_know(service: Asked) -> None:
    one = service.post(input="Hello world.", response_format="wav")
    assert int(one.headers["content-length"]) == len(one.content)
    with wave.open(io.BytesIO(one.content)) as file:
        assert file.getnframes() * 2 + 44 == len(one.content)
    several = service.post(input=LINES, response_format="wav")
    assert "content-length" not in several.headers
    assert several.content[4:8] == b"\xff" * 4


def test_events_carry_the_same_sound_and_the_receipt(service: Asked) -> None:
    answer = service.post(input=LINES, response_format="pcm", stream_format="sse", voice=NAMES[1])
    events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: ")]
    assert [one["type"] for one in events] == ["speech.audio.delta"] * 3 + ["speech.audio.done"]
    sound = b"".join(base64.b64decode(one["audio"]) for one in events[:-1])
    assert np.array_equal(samples_of(sound, "pcm"), exact(service))  # this voice's noise does not depend on its style
    assert events[-1]["usage"] == {"input_tokens": 0, "output_tokens": 0, "total_tokens": 0}
    (stage,) = events[-1]["edgewise"]["stages"]
    assert (stage["stage"], stage["where"], stage["voice"], stage["runs"]) == ("speak", "local", NAMES[1], 3)
    assert stage["speech_ms"] == pytest.approx(len(sound) / 2 / PCM_RATE * 1e3, abs=0.1)
    assert stage["first_ms"] > 0


def test_the_receipt_is_kept_and_comes_in_a_header_when_asked(service: Asked) -> None:
    answer = service.post(headers={"X-Edgewise-Receipt": "header"}, input="Yes \U0001f600. Good!")
    told = json.loads(answer.headers["x-edgewise-receipt"])
    assert told["model"] == "tiny-voice"
    assert told["warnings"] == ["Characters that have no sound were left out (signs): 1, each counted once."]
    found = httpx.get(f"{service.url}/edgewise/v1/receipts/{answer.headers['x-request-id']}", timeout=30)
    assert found.status_code == 200
    assert found.json()["receipt"]["stages"] == told["stages"]
    refused = service.post(headers={"X-Edgewise-Receipt": "header"}, input="Yes.", stream_format="sse")
    assert refused.status_code == 400


def test_the_metrics_count_what_was_spoken(service: Asked) -> None:
    def count(name: str) -> float:
        text = httpx.get(f"{service.url}/metrics", timeout=30).text
        return float(text.split(f"\nedgewise_{name}_count ")[1].splitlines()[0])

    names = ("speech_first_sound_seconds", "speech_real_time_factor")
    before = [count(name) for name in names]
    assert service.post(input="Yes.").status_code == 200
    assert service.post(input="Yes.", voice="nobody").status_code == 400
    assert [count(name) for name in names] == [one + 1 for one in before]


def test_speed_changes_the_length(service: Asked) -> None:
    plain, fast = (len(exact(service, "One two three four.", speed=speed)) for speed in (1.0, 2.0))
    assert abs(plain - 2 * fast) <= 4 * STEP


@pytest.mark.parametrize(
    ("body", "status", "param", "says"),
    [
        ({"input": ""}, 400, "input", "nothing that can be spoken"),
        ({"input": "\U0001f600 \n"}, 400, "input", "send words or numbers"),
        ({"input": "x" * 4097}, 400, "input", "4097 characters: at most 4096"),
        ({}, 400, "input", "required"),
        ({"input": 3}, 400, "input", "string"),
        ({"input": "yes", "voice": "alloy"}, 400, "voice", f"'{NAMES[0]}', '{NAMES[1]}'"),
        ({"input": "yes", "model": "tts-1"}, 404, "model", "'tiny-voice'"),
        ({"input": "yes", "model": "tiny"}, 400, "model", "is for text"),
        ({"input": "yes", "speed": 5}, 400, "speed", "at most 4"),
        ({"input": "yes", "speed": 0.1}, 400, "speed", "at least 0.25"),
        ({"input": "yes", "response_format": "au"}, 400, "response_format", "'opus'"),
        ({"input": "yes", "stream_format": "ws"}, 400, "stream_format", "'sse'"),
        ({"input": "yes", "instructions": "Whisper."}, 400, "instructions", "choose a 'voice'"),
        ({"input": "yes", "colour": 1}, 400, "colour", "Unknown field"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(
    service: Asked, body: dict[str, Any], status: int, param: str, says: str
) -> None:
    answer = service.post(**body)
    assert answer.status_code == status
    error = answer.json()["error"]
    assert error["param"] == param
    assert says in error["message"]


def test_empty_instructions_ask_for_nothing(service: Asked) -> None:
    assert service.post(input="yes", instructions="").status_code == 200


def test_the_command_writes_a_file_and_says_who_spoke(service: Asked, tmp_path: Path) -> None:
    out = tmp_path / "x.wav"
    said = edgewise(service.home, "speak", LINES, "--out", str(out), "--url", service.url)
    assert said.strip().endswith(f"spoken by tiny-voice ({NAMES[0]})")
    with wave.open(str(out)) as file:
        assert file.getnframes() == len(exact(service))
    for arguments, says in (
        (("--out", str(tmp_path / "x.xyz")), "use .wav, .flac, .mp3"),
        ((), "--out FILE, or --play"),
    ):
        with pytest.raises(RuntimeError, match=says):
            edgewise(service.home, "speak", "Yes.", *arguments, "--url", service.url)


async def test_a_fault_on_the_way_leaves_the_answer_without_its_end() -> None:
    async def sound() -> AsyncGenerator[bytes, None]:
        yield b"first"
        raise EngineFault("The engine is gone.")

    async def receive() -> Message:
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: Message) -> None:
        sent.append(message)

    sent: list[Message] = []
    scope: Scope = {"type": "http"}
    context = RequestContext(id="r", started=0.0)
    store_context(scope, context)
    answer = SoundStream(sound(), media_type="audio/mpeg", headers={"X-Edgewise-Voice": "v"}, send_timeout_s=5.0)
    await answer(scope, receive, send)
    assert [one.get("body") for one in sent] == [None, b"first"]
    assert (b"x-edgewise-voice", b"v") in sent[0]["headers"]
    assert (b"content-type", b"audio/mpeg") in sent[0]["headers"]
    assert sent[-1]["more_body"]
    assert context.error == "engine_error"
