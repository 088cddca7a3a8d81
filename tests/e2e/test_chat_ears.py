"""Recordings in chats over a real service: a tiny random Qwen2-Audio hears, and for a model without ears Whisper writes down."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest

from scripts.service import DeviceService
from tests.e2e.service import import_model, import_tiny, new_home, running
from tests.models.media.sounds import bad_sounds, encode, tone, wav
from tests.models.multimodal.tiny_qwen2_audio import tiny_qwen2_audio
from tests.recordings import add_models, librivox

TIMEOUT_S = 120
AROUND = 2  # markers before and after a recording
ROWS = 25  # of a second


@pytest.fixture(scope="module")
def service() -> Iterator[DeviceService]:
    with new_home(starter=False) as home:
        add_models(home, "whisper-tiny.en", "silero-vad")
        import_model(home, tiny_qwen2_audio(home / "source"), "ears")
        import_tiny(home, "deaf")
        with running(model="ears", home=home) as started:
            yield started


def heard(data: bytes, form: str = "wav") -> dict[str, Any]:
    return {"type": "input_audio", "input_audio": {"data": base64.b64encode(data).decode(), "format": form}}


def said(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def ask(service: DeviceService, *parts: dict[str, Any], model: str, **more: Any) -> httpx.Response:
    messages = [{"role": "user", "content": list(parts)}]
    body = {"model": model, "messages": messages, "max_tokens": 6, "seed": 3, "return_token_ids": True, **more}
    return httpx.post(f"{service.url}/v1/chat/completions", json=body, timeout=TIMEOUT_S)


def answer(response: httpx.Response) -> dict[str, Any]:
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


def test_a_recording_is_heard_whatever_file_it_comes_in(service: DeviceService) -> None:
    plain = answer(ask(service, said("\nwhat is it?"), model="ears"))
    one = answer(ask(service, heard(wav(tone(1.0))), said("what is it?"), model="ears"))
    (medium,) = one["edgewise"]["media"]
    assert (medium["kind"], medium["seconds"], medium["tokens"]) == ("audio", 1.0, ROWS)
    assert one["usage"]["prompt_tokens"] == plain["usage"]["prompt_tokens"] + ROWS + AROUND
    again = answer(ask(service, heard(encode(tone(1.0), "flac"), "flac"), said("what is it?"), model="ears"))
    assert again["edgewise"]["media"][0]["tokens"] == ROWS
    other = answer(ask(service, heard(wav(tone(1.0, hertz=900.0))), said("what is it?"), model="ears"))
    assert other["usage"]["prompt_tokens"] == one["usage"]["prompt_tokens"]
    assert other["edgewise"]["stages"][0]["cached_tokens"] < ROWS


def test_a_model_without_ears_is_told_what_is_said(service: DeviceService) -> None:
    clip = librivox()[4]
    found = answer(ask(service, said("Repeat it."), heard(clip.path.read_bytes()), model="deaf"))
    listen, generate = found["edgewise"]["stages"]
    assert (listen["stage"], listen["model"], generate["stage"]) == ("listen", "whisper-tiny.en", "generate")
    assert any("'deaf' has no ears: 'whisper-tiny.en' heard" in one for one in found["edgewise"]["warnings"])
    assert found["edgewise"]["media"][0]["seconds"] == pytest.approx(3.29)
    silent = answer(ask(service, said("Repeat it."), heard(wav(np.zeros(16_000, dtype=np.float32))), model="deaf"))
    assert found["usage"]["prompt_tokens"] != silent["usage"]["prompt_tokens"]


def test_what_cannot_be_heard_is_refused_by_name(service: DeviceService) -> None:
    long = ask(service, heard(wav(tone(2.5))), model="ears")
    assert (long.status_code, long.json()["error"]["param"]) == (400, "messages[0].content[0].input_audio.data")
    assert "at most 2 s at once" in long.json()["error"]["message"]
    for model in ("ears", "deaf"):
        broken = ask(service, heard(bad_sounds()["windows media"]), model=model)
        assert broken.status_code == 400
        assert "Windows Media" in broken.json()["error"]["message"]
    form = ask(service, heard(wav(tone(0.5)), "../etc"), model="ears")
    assert "must name a format of sound" in form.json()["error"]["message"]


def test_without_a_model_for_speech_the_remedy_is_named() -> None:
    with new_home(starter=False) as home, running(model=import_tiny(home), home=home) as service:
        refused = ask(service, heard(wav(tone(0.5))), model="tiny")
    assert refused.status_code == 400
    assert "edgewise models pull whisper-base" in refused.json()["error"]["message"]
