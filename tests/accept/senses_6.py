"""A question is spoken into a microphone, and the answer comes out of a speaker: how long is it silent between the two?

`edgewise voice` runs as its user runs it, on a PulseAudio server with a virtual microphone and a virtual speaker. The question is
spoken by the voice `fast`. What is said on both sides is recorded on one time axis; the silence is measured there, so it holds
everything: the end of the turn, transcription, the first sentence, its speech, and the buffers of PortAudio and PulseAudio.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
import wave
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import numpy.typing as npt

from edgewise.models.encoders.record import read_ladders
from edgewise.models.store import Store
from tests.accept.line import Line, NotRun, Verdict, main, progress
from tests.e2e.pulse import RATE, Pulse, missing, pulse
from tests.e2e.service import STARTER, edgewise, new_home, running, suite_limits
from tests.recordings import hearing_home, words

QUICK: Mapping[str, str] = {"transcription": "whisper-tiny.en", "speech": "piper-joe"}
DEFAULT: Mapping[str, str] = {"transcription": "whisper-base", "speech": "kokoro"}
QUESTION = "What is the capital of France?"
LIMIT_S = 2.0
SYSTEM = "Answer in one short sentence."
_TIMEOUT_S = 300.0
_QUIET = 0.005
"""Mean amplitude of 20 ms below which nobody speaks."""
_PAUSE_S = 0.45
"""No pause inside of the question is as long."""

Samples = npt.NDArray[np.int16]


@dataclass(frozen=True)
class Trial:
    """`silence_s` as recorded, `receipt` as the service has it, `read_back` what a transcription of the answer's sound says."""

    silence_s: float
    heard: str
    said: str
    read_back: str
    receipt: Mapping[str, Any]
    xruns: int


def measure(count: int) -> Verdict:
    if (package := missing()) is not None:
        raise NotRun(f"the package {package} is not installed, so there is no sound server to talk through")
    home = hearing_home("silero-vad", *QUICK.values(), *DEFAULT.values())
    if count > 1:  # a small count judges no times, and this takes minutes
        measure_encoders(home)
    with (
        new_home() as home,
        running(home=home) as service,
        pulse() as sound,
        httpx.Client(base_url=service.url, timeout=_TIMEOUT_S, trust_env=False) as http,
    ):
        question = sound.folder / "question.wav"
        body = {"model": QUICK["speech"], "input": QUESTION, "response_format": "wav"}
        question.write_bytes(_posted(http, "/v1/audio/speech", json=body).content)
        _trial(service.url, http, sound, question, QUICK)  # loads the models
        trials = []
        for number in range(1, count + 1):
            trials.append(_trial(service.url, http, sound, question, QUICK))
            progress(f"{number} of {count}: {trials[-1].silence_s:.2f} s")
        _trial(service.url, http, sound, question, DEFAULT)
        default = _trial(service.url, http, sound, question, DEFAULT)
    silences = [one.silence_s for one in trials]
    correct = all(_right(one) for one in (*trials, default))
    median, worst = statistics.median(silences), max(silences)
    return Verdict(
        figure=f"{median:.2f} s of silence (median of {count}; worst {worst:.2f} s), default models {default.silence_s:.2f} s; "
        f"{sum(map(_right, trials))} of {count} right",
        passed=correct and median <= LIMIT_S,
        correct=correct,
        details={
            "cores": len(os.sched_getaffinity(0)),
            "load": os.getloadavg()[0],
            "silence_s": [round(one, 3) for one in silences],
            "first_sound_ms": [one.receipt["first_sound_ms"] for one in trials],
            "transcription_ms": [one.receipt["transcription"]["total_ms"] for one in trials],
            "first_token_ms": [_stage(one, "ttft_ms") for one in trials],
            "answer_ms": [one.receipt["answer"]["total_ms"] for one in trials],
            "worst_gap_ms": max(one.receipt["worst_gap_ms"] for one in trials),
            "real_time_factor": [one.receipt["real_time_factor"] for one in trials],
            "xruns": sum(one.xruns for one in trials),
            "heard": [one.heard for one in trials],
            "said": [one.said for one in trials],
            "read_back": [one.read_back for one in trials],
            "default_first_sound_ms": default.receipt["first_sound_ms"],
        },
    )


def measure_encoders(home: Path) -> None:
    """As a device does it beside its first requests, which are no trials."""
    store = Store(home / "models")
    for name in (QUICK["transcription"], DEFAULT["transcription"]):
        if not read_ladders(store.root, store.manifest(name).digest):
            progress(f"the encoder of {name} is measured")
            measured = ("models", "encoders", name, "--measure")
            edgewise(home, *measured, timeout_s=1800, environment=suite_limits())


def _stage(trial: Trial, name: str) -> Any:
    return trial.receipt["answer"]["stages"][-1][name]


def _trial(url: str, http: httpx.Client, sound: Pulse, question: Path, models: Mapping[str, str]) -> Trial:
    """One question and its answer, as a user of the command has them."""
    command = [sys.executable, "-m", "edgewise.cli.main", "voice", "--json", "--once", "--url", url, "--system", SYSTEM]
    command += [
        "--model",
        STARTER,
        "--transcription-model",
        models["transcription"],
        "--speech-model",
        models["speech"],
    ]
    environment = {**os.environ, **sound.environment}
    with (
        sound.recording("room") as recorded,
        subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as talking,
    ):
        try:
            assert talking.stdout is not None
            assert talking.stderr is not None
            begun = talking.stdout.readline()
            if not begun:
                raise NotRun(f"`edgewise voice` ended: {talking.stderr.read().strip()}")
            time.sleep(1.0)  # silence before the question, so that the recording shows where it begins
            sound.say(question).wait(_TIMEOUT_S)
            rest, said = talking.communicate(timeout=_TIMEOUT_S)
        finally:
            talking.kill()
        if talking.returncode != 0:
            raise NotRun(f"`edgewise voice` ended: {said.strip()}")
        time.sleep(0.5)  # what is in the loopback's buffers
    events = [json.loads(line) for line in rest.splitlines()]
    silence_s, answer = _parts(np.fromfile(recorded, dtype="<i2"))
    done = next(one["response"] for one in events if one["type"] == "response.done")
    transcript = next(one for one in events if one["type"].endswith("input_audio_transcription.completed"))
    summary = events[-1]
    return Trial(
        silence_s=silence_s,
        heard=transcript["transcript"],
        said=done["output"][0]["content"][0]["transcript"],
        read_back=_read_back(http, sound.folder / "answer.wav", answer),
        receipt=done["edgewise"],
        xruns=summary["input_overflows"] + summary["output_underflows"],
    )


def _parts(recorded: Samples) -> tuple[float, Samples]:
    """Seconds between the end of the first speech and the next, and all from there on."""
    size = RATE // 50
    frames = recorded[: len(recorded) // size * size].reshape(-1, size).astype(np.float32) / 32768
    loud = np.flatnonzero(np.abs(frames).mean(axis=1) > _QUIET)
    gaps = np.diff(loud) / 50
    found = np.flatnonzero(gaps >= _PAUSE_S)
    if not found.size:
        return float("inf"), recorded[:0]
    return float(gaps[found[0]]), recorded[loud[found[0] + 1] * size :]


def _read_back(http: httpx.Client, path: Path, answer: Samples) -> str:
    if not answer.size:
        return ""
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes(answer.tobytes())
    sent = {"files": {"file": ("answer.wav", path.read_bytes())}, "data": {"model": DEFAULT["transcription"]}}
    text: str = _posted(http, "/v1/audio/transcriptions", **sent).json()["text"]
    return text


def _posted(http: httpx.Client, path: str, **sent: Any) -> httpx.Response:
    answer = http.post(path, **sent)
    if answer.is_error:
        raise NotRun(f"{path}: {answer.status_code} {answer.text[:300]}")
    return answer


def _right(trial: Trial) -> bool:
    """Understood, answered, and nine in ten letters of the answer heard in its sound: "France is" may be heard as "Francis"."""
    said, back = words(trial.said), words(trial.read_back)
    alike = SequenceMatcher(None, said.replace(" ", ""), back.replace(" ", "")).ratio()
    return (
        "capital of france" in words(trial.heard)
        and "paris" in said
        and alike >= 0.9
        and bool(np.isfinite(trial.silence_s))
    )


LINE = Line(
    number=6,
    title="Talking: a spoken question in, a spoken answer out, through microphone and speaker",
    bar=f"silence between them <= {LIMIT_S:g} s with whisper-tiny.en, {STARTER} and piper-joe on two cores; every answer right",
    count=10,
    small=1,
    measure=measure,
)

if __name__ == "__main__":
    main(LINE, "tests.accept.senses_6")
