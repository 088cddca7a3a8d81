"""Chats that answer in text and speech, over a real service: a tiny random Qwen2.5-Omni."""

from __future__ import annotations

import base64
import io
import json
import os
import signal
import wave
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image

from edgewise.models.media.sound_out import wav_header
from scripts.service import DeviceService
from tests.e2e.service import import_model, import_tiny, new_home, running
from tests.models.multimodal.small import picture
from tests.models.omni.tiny_omni import tiny_omni

TIMEOUT_S = 120
CHAT = "/v1/chat/completions"
SPOKEN = {"modalities": ["text", "audio"], "audio": {"voice": "Ann", "format": "wav"}}
STREAMED = {"modalities": ["text", "audio"], "audio": {"voice": "Ann", "format": "pcm16"}, "stream": True}


@pytest.fixture(scope="module")
def service() -> Iterator[DeviceService]:
    with new_home(starter=False) as home:
        import_model(home, tiny_omni(home / "source"), "omni")
        import_tiny(home, "mute")
        with running(model="omni", home=home) as started:
            yield started


def body(model: str = "omni", **more: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": "say something"}]
    return {"model": model, "messages": messages, "max_tokens": 12, "seed": 2, "temperature": 0, **more}


def ask(service: DeviceService, **more: Any) -> httpx.Response:
    return httpx.post(service.url + CHAT, json=body(**more), timeout=TIMEOUT_S)


def events(service: DeviceService, **more: Any) -> Iterator[dict[str, Any]]:
    with httpx.stream("POST", service.url + CHAT, json=body(**more), timeout=TIMEOUT_S) as response:
        assert response.status_code == 200
        for line in response.iter_lines():
            if line.startswith("data: {"):
                yield json.loads(line.removeprefix("data: "))


def heard(sound: bytes) -> Any:
    with wave.open(io.BytesIO(sound)) as file:
        assert (file.getframerate(), file.getnchannels(), file.getsampwidth()) == (24_000, 1, 2)
        return np.frombuffer(file.readframes(file.getnframes()), np.int16)


def test_an_answer_is_spoken(service: DeviceService) -> None:
    """The text is that of an answer in text alone; the receipt tells how it was spoken."""
    plain = ask(service).json()
    spoken = ask(service, **SPOKEN)
    assert spoken.status_code == 200, spoken.text
    answer = spoken.json()
    (choice,) = answer["choices"]
    audio = choice["message"]["audio"]
    assert choice["message"]["content"] is None
    assert audio["transcript"] == plain["choices"][0]["message"]["content"]
    assert choice["finish_reason"] == plain["choices"][0]["finish_reason"]
    samples = heard(base64.b64decode(audio["data"]))
    told = answer["edgewise"]["speech"]
    assert told["voice"] == "Ann"
    assert told["speech_ms"] == pytest.approx(1000 * len(samples) / 24_000, abs=0.1)
    assert len(samples) == told["codec_tokens"] * 2 * 15 > 0
    assert told["first_audio_ms"] > 0
    assert told["worst_gap_ms"] >= 0
    metrics = httpx.get(service.url + "/metrics", timeout=TIMEOUT_S).text
    for name in ("chat_first_audio_seconds", "chat_speech_real_time_factor", "chat_playback_gap_seconds"):
        assert float(metrics.split(f"\nedgewise_{name}_count ")[1].split("\n")[0]) >= 1


def test_a_stream_has_transcript_and_sound_as_they_are_made(service: DeviceService) -> None:
    whole = ask(service, **SPOKEN).json()["choices"][0]["message"]["audio"]
    found = list(events(service, **STREAMED))
    deltas = [choice["delta"] for event in found for choice in event["choices"]]
    audio = [delta["audio"] for delta in deltas if "audio" in delta]
    assert len({one["id"] for one in audio}) == 1
    assert "".join(one.get("transcript", "") for one in audio) == whole["transcript"]
    samples = np.frombuffer(b"".join(base64.b64decode(one.get("data", "")) for one in audio), np.int16)
    wanted = heard(base64.b64decode(whole["data"]))
    assert len(samples) == len(wanted)
    assert np.abs(samples.astype(int) - wanted).max() < 0.02 * 32767
    assert "expires_at" in audio[-1]
    assert [choice["finish_reason"] for event in found for choice in event["choices"]][-1] == "length"
    first_sound = next(at for at, one in enumerate(audio) if "data" in one)
    assert any("transcript" in one for one in audio[:first_sound])


def test_what_is_heard_and_seen_is_answered_in_speech(service: DeviceService) -> None:
    tone = (8000 * np.sin(np.arange(16_000) / 9)).astype(np.int16).tobytes()
    recording = {"type": "input_audio", "input_audio": {"data": encoded(wav(tone, 16_000)), "format": "wav"}}
    out = io.BytesIO()
    Image.fromarray(picture(120, 80)).save(out, "PNG")
    shown = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{encoded(out.getvalue())}"}}
    content = [recording, shown, {"type": "text", "text": "what is this?"}]
    response = ask(service, messages=[{"role": "user", "content": content}], **SPOKEN)
    assert response.status_code == 200, response.text
    answer = response.json()
    assert [(one["kind"], one["tokens"]) for one in answer["edgewise"]["media"]] == [("audio", 25), ("image", 12)]
    assert answer["edgewise"]["speech"]["voice"] == "Ann"
    assert answer["choices"][0]["message"]["audio"]["transcript"]


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def wav(samples: bytes, rate: int) -> bytes:
    return wav_header(rate, len(samples) // 2) + samples


@pytest.mark.parametrize(
    ("more", "param", "says"),
    [
        ({**SPOKEN, "model": "mute"}, "modalities", "/v1/audio/speech"),
        ({**SPOKEN, "audio": {"voice": "alloy", "format": "wav"}}, "audio.voice", "Ann, Ben"),
        ({**SPOKEN, "audio": {"voice": "Ann", "format": "midi"}}, "audio.format", "pcm16"),
        ({**SPOKEN, "stream": True}, "audio.format", "pcm16"),
        ({**SPOKEN, "n": 2}, "n", "spoken"),
        ({**SPOKEN, "stop": ["x"]}, "stop", "spoken"),
        ({"modalities": ["audio"]}, "modalities", "text"),
        ({"audio": {"voice": "Ann", "format": "wav"}}, "audio", "modalities"),
    ],
)
def test_what_cannot_be_spoken_is_refused_by_name(
    service: DeviceService, more: dict[str, Any], param: str, says: str
) -> None:
    response = ask(service, **more)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["param"] == param
    assert says in error["message"]


def test_speech_goes_on_after_the_engine_was_killed(service: DeviceService) -> None:
    """Nothing is lost, nothing comes twice."""
    wanted = ask(service, **SPOKEN).json()["choices"][0]["message"]["audio"]
    killed, data, text = False, b"", ""
    for event in events(service, **STREAMED):
        for choice in event["choices"]:
            audio = choice["delta"].get("audio", {})
            data += base64.b64decode(audio.get("data", ""))
            text += audio.get("transcript", "")
            if data and not killed:
                killed = True
                os.kill(service.engine_pid(), signal.SIGKILL)
    assert killed
    assert text == wanted["transcript"]
    samples = heard(base64.b64decode(wanted["data"]))
    assert np.abs(np.frombuffer(data, np.int16).astype(int) - samples).max() < 0.02 * 32767
