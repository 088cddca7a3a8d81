"""Transcriptions of a real device service with Whisper tiny.en and Silero VAD: all forms, silence, limits, clients that leave."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, get_type_hints

import httpx
import numpy as np
import openai
import pytest
from openai.types.audio import transcription_create_params, translation_create_params

from edgewise.api.audio.transcription_schemas import EXTENSIONS, TranscriptionBody, TranslationBody
from tests.e2e.service import edgewise, import_tiny, new_home, running
from tests.models.media.sounds import bad_sounds, encode, tone, wav
from tests.recordings import Clip, add_models, librivox, words

MODEL = "whisper-tiny.en"
TRANSCRIPTIONS = "/v1/audio/transcriptions"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with new_home(starter=False) as home:
        add_models(home, MODEL, "silero-vad")
        with running(model=import_tiny(home), home=home) as service:
            yield service.url


@pytest.fixture(scope="module")
def clip() -> Clip:
    return librivox()[4]


def ask(url: str, sound: bytes, **fields: Any) -> httpx.Response:
    return httpx.post(f"{url}{TRANSCRIPTIONS}", files={"file": ("a.wav", sound)}, data=fields, timeout=120)


def test_openais_client_reads_what_is_said(url: str, clip: Clip) -> None:
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="unused", timeout=120)
    with clip.path.open("rb") as file:
        found = client.audio.transcriptions.create(model="whisper-1", file=file)
    assert words(found.text) == clip.text
    with clip.path.open("rb") as file:
        verbose = client.audio.transcriptions.create(
            model=MODEL, file=file, response_format="verbose_json", timestamp_granularities=["segment"]
        )
    assert verbose.language == "english"
    assert verbose.duration == pytest.approx(3.29)
    assert verbose.segments is not None
    assert words("".join(one.text for one in verbose.segments)) == clip.text
    assert 0 <= verbose.segments[0].start < verbose.segments[-1].end <= 3.29
    with clip.path.open("rb") as file:
        events = list(client.audio.transcriptions.create(model=MODEL, file=file, stream=True))
    assert events[-1].type == "transcript.text.done"
    assert words(events[-1].text) == clip.text
    assert "".join(one.delta for one in events if one.type == "transcript.text.delta").strip() == events[-1].text


def test_subtitles_and_the_receipt_in_a_header(url: str, clip: Clip) -> None:
    answer = httpx.post(
        f"{url}{TRANSCRIPTIONS}",
        files={"file": ("a.wav", clip.path.read_bytes())},
        data={"response_format": "srt"},
        headers={"X-Edgewise-Receipt": "header"},
        timeout=120,
    )
    assert re.match(r"1\n00:00:0\d,\d{3} --> 00:00:03,\d{3}\n", answer.text)
    receipt = json.loads(answer.headers["X-Edgewise-Receipt"])
    detect, listen = receipt["stages"]
    assert (detect["stage"], detect["model"], detect["audio_s"]) == ("detect", "silero-vad", 3.29)
    assert 2.0 < detect["speech_s"] <= 3.29
    assert (listen["stage"], listen["windows"], listen["language"], receipt["model"]) == ("transcribe", 1, "en", MODEL)
    vtt = ask(url, clip.path.read_bytes(), response_format="vtt").text
    assert vtt.startswith("WEBVTT\n\n00:00:0")


def test_words_have_times(url: str, clip: Clip) -> None:
    """Where they are by `tests.models.whisper.test_real`; here that they arrive, alone and beside segments."""
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="unused", timeout=120)
    with clip.path.open("rb") as file:
        found = client.audio.transcriptions.create(
            model=MODEL, file=file, response_format="verbose_json", timestamp_granularities=["word"]
        )
    assert found.words is not None
    assert found.segments is None
    assert [words(one.word) for one in found.words] == clip.text.split()
    assert " ".join(one.word for one in found.words) == found.text
    bounds = [bound for one in found.words for bound in (one.start, one.end)]
    assert bounds == sorted(bounds)
    assert 0.4 < found.words[1].start < 0.7  # "He" is said slowly, "might even have been made" is not
    assert 2.2 < found.words[-1].start < 2.5
    assert found.words[-1].end <= 3.29
    fields = {"response_format": "verbose_json", "timestamp_granularities[]": ["word", "segment"]}
    both = ask(url, clip.path.read_bytes(), **fields).json()
    assert both["words"] == [one.model_dump() for one in found.words]
    assert words("".join(one["text"] for one in both["segments"])) == clip.text


def test_subtitles_of_words_have_a_cue_for_each(url: str, clip: Clip) -> None:
    srt = ask(url, clip.path.read_bytes(), **{"response_format": "srt", "timestamp_granularities[]": "word"}).text
    cues = [cue.split("\n") for cue in srt.strip().split("\n\n")]
    assert [words(text) for _, _, text in cues] == clip.text.split()
    assert [number for number, _, _ in cues] == [str(at + 1) for at in range(len(cues))]
    assert all(re.fullmatch(r"00:00:0\d,\d{3} --> 00:00:0\d,\d{3}", times) for _, times, _ in cues)
    vtt = ask(url, clip.path.read_bytes(), **{"response_format": "vtt", "timestamp_granularities[]": "word"}).text
    assert vtt.count(" --> ") == len(cues)


@pytest.mark.parametrize("sound", ["zeros", "noise"])
def test_silence_and_noise_give_no_words(url: str, sound: str) -> None:
    samples = {
        "zeros": np.zeros(19_200, dtype=np.float32),
        "noise": np.random.default_rng(0).normal(0, 0.1, 80_000).astype(np.float32),
    }[sound]
    fields = {"response_format": "verbose_json", "timestamp_granularities[]": ["word", "segment"]}
    answer = ask(url, wav(samples), **fields).json()
    assert (answer["text"], answer["segments"], answer["words"]) == ("", [], [])
    assert answer["duration"] == samples.shape[0] / 16_000


def test_a_long_recording_is_heard_in_windows_whose_times_go_on(url: str) -> None:
    clips = librivox()
    pause = np.zeros(8 * 16_000, dtype=np.float32)
    samples = np.concatenate([part for one in (clips[4], clips[3], clips[4]) for part in (one.samples, pause)])
    fields = {"response_format": "verbose_json", "timestamp_granularities[]": ["word", "segment"]}
    answer = ask(url, encode(samples, "ogg opus"), **fields).json()
    said = words(answer["text"])
    assert said.startswith(clips[4].text)
    assert said.endswith(clips[4].text)
    listen = answer["edgewise"]["stages"][1]
    assert (listen["windows"], listen["encoders"][0]["inputs"]) == (3, 3)
    assert re.fullmatch(r"torch-(float32|bfloat16)", listen["encoders"][0]["rung"])
    starts = [one["start"] for one in answer["segments"]]
    assert starts == sorted(starts)
    last = 3.29 + 8 + 6.05 + 8
    assert abs(answer["segments"][-1]["start"] - last) < 1.0
    bounds = [bound for one in answer["words"] for bound in (one["start"], one["end"])]
    assert bounds == sorted(bounds)
    himself = [one["start"] for one in answer["words"] if words(one["word"]) == "himself"]
    assert himself == [pytest.approx(2.32, abs=0.2), pytest.approx(last + 2.32, abs=0.2)]


def test_broken_files_are_refused_and_the_service_goes_on(url: str) -> None:
    for name, data in bad_sounds().items():
        answer = ask(url, data)
        assert answer.status_code == 400, (name, answer.text)
        assert "'file'" in answer.json()["error"]["message"]
    large = ask(url, bytes(27 << 20))
    assert large.status_code == 413
    assert "audio.max_bytes: 26214400" in large.json()["error"]["message"]
    assert ask(url, wav(np.zeros(16_000, dtype=np.float32))).json()["text"] == ""


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"model": "tiny"}, "model"),
        ({"model": "silero-vad"}, "model"),
        ({"model": "none"}, "model"),
        ({"language": "de"}, "language"),
        ({"languages[]": "de"}, "languages"),
        ({"language": "en", "languages[]": "en"}, "languages"),
        ({"temperature": "2"}, "temperature"),
        ({"response_format": "diarized_json"}, "response_format"),
        ({"stream": "true", "response_format": "srt"}, "stream"),
        ({"timestamp_granularities[]": "segment"}, "timestamp_granularities"),
        ({"timestamp_granularities[]": "word", "response_format": "text"}, "timestamp_granularities"),
        ({"timestamp_granularities[]": "line", "response_format": "verbose_json"}, "timestamp_granularities[0]"),
        ({"timestamp_granularities[]": ["word", "segment"], "response_format": "vtt"}, "timestamp_granularities"),
        ({"include[]": "logprobs"}, "include"),
        ({"chunking_strategy": "server_vad"}, "chunking_strategy"),
        ({"nonsense": "1"}, "nonsense"),
    ],
)
def test_fields_are_refused_by_name(url: str, fields: dict[str, Any], param: str) -> None:
    answer = ask(url, wav(tone(0.2)), **fields)
    assert answer.status_code in (400, 404)
    assert answer.json()["error"]["param"] == param


def test_what_is_no_form_is_refused(url: str) -> None:
    assert httpx.post(f"{url}{TRANSCRIPTIONS}", json={"file": "x"}).status_code == 415
    missing = httpx.post(f"{url}{TRANSCRIPTIONS}", files={"other": b"x"})
    assert (missing.status_code, missing.json()["error"]["param"]) == (400, "other")
    translated = httpx.post(f"{url}/v1/audio/translations", files={"file": wav(tone(0.2))}, timeout=60)
    assert "English alone" in translated.json()["error"]["message"]


def test_the_command_writes_what_is_said(url: str, clip: Clip, tmp_path: Path) -> None:
    said = edgewise(tmp_path, "transcribe", str(clip.path), "--url", url)
    assert words(said) == clip.text
    told = json.loads(edgewise(tmp_path, "transcribe", str(clip.path), "--url", url, "--json"))
    assert told["edgewise"]["model"] == MODEL
    assert "words" not in told
    told = json.loads(edgewise(tmp_path, "transcribe", str(clip.path), "--url", url, "--words", "--json"))
    assert words("".join(one["text"] for one in told["segments"])) == clip.text
    lines = edgewise(tmp_path, "transcribe", str(clip.path), "--url", url, "--words").splitlines()
    assert [line.split() for line in lines] == [
        [f"{one['start']:.2f}", f"{one['end']:.2f}", one["word"]] for one in told["words"]
    ]
    assert edgewise(tmp_path, "transcribe", str(clip.path), "--url", url, "--words", "--format", "srt").count(
        "-->"
    ) == len(lines)
    with pytest.raises(RuntimeError, match="a translation's words are not spoken"):
        edgewise(tmp_path, "transcribe", str(clip.path), "--url", url, "--words", "--translate")
    with pytest.raises(RuntimeError, match="does not exist"):
        edgewise(tmp_path, "transcribe", str(tmp_path / "nothing.wav"), "--url", url)


def test_fields_are_those_of_openais_document_and_the_extensions() -> None:
    def document(*types: Any) -> set[str]:
        return {name for one in types for name in get_type_hints(one)}

    heard = document(
        transcription_create_params.TranscriptionCreateParamsNonStreaming,
        transcription_create_params.TranscriptionCreateParamsStreaming,
    )
    assert {*TranscriptionBody.model_fields, "file"} == heard | set(EXTENSIONS)
    translated = document(translation_create_params.TranslationCreateParams)
    assert {*TranslationBody.model_fields, "file"} == translated | set(EXTENSIONS)


def test_the_engine_is_killed_and_the_text_is_the_same(url: str) -> None:
    clips = librivox()
    recording = wav(np.concatenate([clips[0].samples, clips[3].samples]))
    whole = ask(url, recording).json()["text"]
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(ask, url, recording)
        os.kill(_busy(url), signal.SIGKILL)
        answer = asked.result().json()
    assert answer["edgewise"]["stages"][-1]["restarts"] >= 1
    assert answer["text"] == whole


def _busy(url: str) -> int:
    """Process id of the model's engine once it has a request."""
    for _ in range(2000):
        for one in httpx.get(f"{url}/edgewise/v1/models").json()["models"]:
            if one["name"] == MODEL and one["active"]:
                return int(one["pid"])
        time.sleep(0.01)
    raise AssertionError("the engine was never busy")


def test_metrics_tell_the_real_time_factor(url: str, clip: Clip) -> None:
    ask(url, clip.path.read_bytes())
    found = httpx.get(f"{url}/metrics").text
    (count,) = re.findall(r"^edgewise_transcription_real_time_factor_count (\S+)$", found, re.MULTILINE)
    assert float(count) >= 1
