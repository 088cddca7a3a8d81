"""Corrupt media that a stranger might send: each refused in words that help, or read right; memory stays flat."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import numpy as np
import psutil

from edgewise.models.media.pictures import read_rgb
from tests.accept.line import Line, Verdict, main, progress
from tests.e2e.service import import_tiny, new_home, running
from tests.models.media.sounds import bad_sounds, tone, wav
from tests.models.media.test_corrupt_pictures import RIGHT, WRONG
from tests.recordings import add_models

FULL = 20
GROWTH_MIB = 32
_HELPS = re.compile(r"[Ss]end|Make it smaller|Save it again|cut off after its header")
_TIMEOUT_S = 120


def pictures(url: str) -> Iterator[str]:
    """What is wrong with the answers to pictures, those that are read and those that are not."""
    for name, (make, color) in RIGHT.items():
        data = make()
        pixels = read_rgb(data, "image")
        if np.abs(pixels.astype(int) - color).max() > 2:
            yield f"picture '{name}': other pixels"
        answer = _look(url, data)
        if answer.status_code != 200 or (answer.json()["width"], answer.json()["height"]) != (8, 6):
            yield f"picture '{name}': {answer.status_code} {answer.text[:200]}"
    for name, (make, message) in WRONG.items():
        yield from _refused(f"picture '{name}'", _look(url, make()), message)


def recordings(url: str) -> Iterator[str]:
    """The same for recordings; after all of them a good one is heard, whose length tells that its samples are there."""
    for name, data in bad_sounds().items():
        yield from _refused(f"recording '{name}'", _hear(url, data), "'file'")
    answer = _hear(url, wav(tone(1.5)))
    if answer.status_code != 200 or (answer.json()["duration"], answer.json()["text"]) != (1.5, ""):
        yield f"a good recording: {answer.status_code} {answer.text[:200]}"


def _look(url: str, data: bytes) -> httpx.Response:
    image = "data:application/octet-stream;base64," + base64.b64encode(data).decode()
    return httpx.post(f"{url}/edgewise/v1/vision/classify", json={"image": image}, timeout=_TIMEOUT_S)


def _hear(url: str, data: bytes) -> httpx.Response:
    return httpx.post(
        f"{url}/v1/audio/transcriptions",
        files={"file": ("a.bin", data)},
        data={"response_format": "verbose_json"},
        timeout=_TIMEOUT_S,
    )


def _refused(what: str, answer: httpx.Response, message: str) -> Iterator[str]:
    error: dict[str, Any] = answer.json().get("error", {})
    told = str(error.get("message", ""))
    if answer.status_code != 400 or not re.search(message, told) or not _HELPS.search(told):
        yield f"{what}: {answer.status_code} {answer.text[:200]}"


def resident(pid: int) -> int:
    """Bytes of a process and all of its children."""
    service = psutil.Process(pid)
    return sum(one.memory_info().rss for one in (service, *service.children(recursive=True)))


def measure(count: int) -> Verdict:
    """`count` times all files; memory is compared from the second round on, when everything is loaded.

    The service does not look for its encoders' quickest forms meanwhile: that is a process beside it, which comes and goes.
    """
    senses: tuple[Callable[[str], Iterator[str]], ...] = (pictures, recordings)
    with new_home(starter=False) as home:
        add_models(home, "whisper-tiny.en", "silero-vad", "efficientnet-lite0")
        untuned = {"EDGEWISE_ENGINE__ENCODER_TUNING": "off"}
        with running(model=import_tiny(home), home=home, environment=untuned) as service:
            wrong: list[str] = []
            sizes: list[int] = []
            for number in range(count):
                wrong += [fault for sense in senses for fault in sense(service.url)]
                sizes.append(resident(service.pid))
                progress(f"round {number + 1}: {len(wrong)} wrong, {sizes[-1] >> 20} MiB")
    files = (len(RIGHT) + len(WRONG), len(bad_sounds()))
    growth = (sizes[-1] - sizes[min(1, len(sizes) - 1)]) / (1 << 20)
    return Verdict(
        figure=f"{files[0]} pictures and {files[1]} recordings, {count} times: {len(wrong)} wrong; {growth:+.1f} MiB",
        passed=not wrong and growth <= GROWTH_MIB,
        correct=not wrong,
        details={"wrong": wrong[:20], "mib": [size >> 20 for size in sizes]},
    )


LINE = Line(
    number=5,
    title="Corrupt media: 30 pictures and 20 recordings, each refused with a helpful message or read right; memory flat",
    bar=f"none wrong, at most {GROWTH_MIB} MiB more after 20 rounds",
    count=FULL,
    small=1,
    measure=measure,
)

if __name__ == "__main__":
    main(LINE, "tests.accept.senses_5")
