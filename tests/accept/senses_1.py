"""A fresh machine, one command, then the network unplugged: it embeds, reads, labels, hears and speaks.

`edgewise models pull starter` into an empty home (at the small count into the tests' cache), then a device service with `offline`
on, in a network namespace of its own where the system allows that, so that nothing outside can be reached whatever is tried.
"""

from __future__ import annotations

import argparse
import base64
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.accept.line import Line, NotRun, Verdict, main, progress
from tests.accept.speech_sentences import SENTENCES, said_words
from tests.e2e.service import PULL_TIMEOUT_S, cache_dir, edgewise, running
from tests.e2e.vision import INVOICE, invoice, photo, png
from tests.recordings import librivox, words

FULL = len(SENTENCES)
PHOTOS = {
    "chelsea.png": {"tiger cat", "tabby", "Egyptian cat"},
    "coffee.png": {"espresso"},
    "camera.png": {"tripod"},
    "rocket.jpg": {"missile", "projectile"},
    "motorcycle_left.png": {"moped", "motor scooter"},
}
"""Photos inside scikit-image, and names of what they show, as near as the 1,000 classes come."""
ALIKE = ("The cat sits on the mat.", "A kitten rests on a rug.")
UNLIKE = "The bank raised its interest rate."
_UNPLUGGED = ("unshare", "--map-root-user", "--net", "sh", "-c", 'ip link set lo up && exec "$0" "$@"')
_TIMEOUT_S = 600


class Device:
    """A running service, asked as OpenAI's clients would."""

    def __init__(self, url: str) -> None:
        self._http = httpx.Client(base_url=url, timeout=_TIMEOUT_S, trust_env=False)

    def post(self, path: str, **sent: Any) -> httpx.Response:
        answer = self._http.post(path, **sent)
        if answer.is_error:
            raise ValueError(f"{path}: {answer.status_code} {answer.text[:300]}")
        return answer

    def vectors(self, texts: Sequence[str]) -> list[list[float]]:
        body = {"model": "minilm", "input": list(texts)}
        return [one["embedding"] for one in self.post("/v1/embeddings", json=body).json()["data"]]

    def look(self, what: str, data: bytes, **body: Any) -> dict[str, Any]:
        url = "data:image/png;base64," + base64.b64encode(data).decode()
        found: dict[str, Any] = self.post(f"/edgewise/v1/vision/{what}", json={"image": url, **body}).json()
        return found

    def hear(self, recording: bytes, model: str = "whisper-base") -> str:
        files = {"file": ("recording.wav", recording, "audio/wav")}
        text: str = self.post(
            "/v1/audio/transcriptions", files=files, data={"model": model, "temperature": "0"}
        ).json()["text"]
        return text

    def speak(self, text: str) -> bytes:
        return self.post("/v1/audio/speech", json={"model": "kokoro", "input": text, "response_format": "wav"}).content


def cosine(left: Sequence[float], right: Sequence[float]) -> float:
    return sum(a * b for a, b in zip(left, right, strict=True)) / (math.hypot(*left) * math.hypot(*right))


def embeds(device: Device) -> Iterator[str]:
    first, second, other = device.vectors([*ALIKE, UNLIKE])
    if not cosine(first, second) > 0.3 > cosine(first, other):
        yield f"embeddings: {cosine(first, second):.2f} between like sentences, {cosine(first, other):.2f} to another"


def reads(device: Device) -> Iterator[str]:
    text = device.look("ocr", png(invoice()))["text"]
    if text.splitlines() != list(INVOICE):
        yield f"OCR: {text!r}"


def labels(device: Device) -> Iterator[str]:
    for name, right in PHOTOS.items():
        first = device.look("classify", photo(name), top=1)["labels"][0]["name"]
        if first not in right:
            yield f"label of {name}: {first}"


def hears(device: Device, count: int) -> Iterator[str]:
    for clip in librivox()[:count]:
        heard = device.hear(clip.path.read_bytes())
        if words(heard) != clip.text:
            yield f"heard {heard!r} where {clip.text!r} is said"


def speaks(device: Device, count: int) -> Iterator[str]:
    for text in SENTENCES[:count]:
        heard = device.hear(device.speak(text))
        if said_words(heard) != said_words(text):
            yield f"spoken {text!r}, heard {heard!r}"


def try_all(home: Path, count: int) -> dict[str, list[str]]:
    """What is wrong, by sense."""
    with running(model="smollm2-135m-instruct", home=home, environment={"EDGEWISE_OFFLINE": "true"}) as service:
        device, found = Device(service.url), {}
        senses: dict[str, Callable[[], Iterator[str]]] = {
            "embeddings": lambda: embeds(device),
            "OCR": lambda: reads(device),
            "labels": lambda: labels(device),
            "hearing": lambda: hears(device, clips_of(count)),
            "speech": lambda: speaks(device, count),
        }
        for name, sense in senses.items():
            progress(name)
            try:
                found[name] = list(sense())
            except (httpx.HTTPError, ValueError, KeyError) as error:
                found[name] = [f"{name}: {error}"]
        return found


@contextmanager
def pulled(*, fresh: bool) -> Iterator[tuple[Path, float]]:
    """A home with the starter set, and how long the pull took."""
    with tempfile.TemporaryDirectory(prefix="edgewise-senses-") as folder:
        home = Path(folder) if fresh else cache_dir() / "home"
        home.mkdir(parents=True, exist_ok=True)
        began = time.monotonic()
        edgewise(home, "models", "pull", "starter", timeout_s=PULL_TIMEOUT_S)
        took = time.monotonic() - began
        if not fresh:
            (Path(folder) / "models").symlink_to(home / "models")
        yield Path(folder), took


def clips_of(count: int) -> int:
    """How many recordings are heard: all five from that count on, two at least."""
    return min(max(count, 2), len(librivox()))


def can_unplug() -> bool:
    if shutil.which("unshare") is None or shutil.which("ip") is None:
        return False
    return subprocess.run([*_UNPLUGGED, "true"], check=False, capture_output=True).returncode == 0


def measure(count: int) -> Verdict:
    """`count` sentences are read back."""
    try:
        clips = clips_of(count)  # fetched now: inside there is no network
    except pytest.skip.Exception as reason:
        raise NotRun(str(reason)) from reason
    unplugged = can_unplug()
    with pulled(fresh=count >= FULL) as (home, took), tempfile.TemporaryDirectory() as out:
        report = Path(out) / "report.json"
        inside = [sys.executable, "-m", "tests.accept.senses_1", "--inside", str(home), str(report), str(count)]
        command = [*_UNPLUGGED, *inside] if unplugged else inside
        subprocess.run(command, check=True, env=os.environ)
        found: dict[str, list[str]] = json.loads(report.read_text())
    wrong = [fault for faults in found.values() for fault in faults]
    how = "in a network of its own" if unplugged else "with `offline` on (no network namespaces here)"
    figure = (
        f"pulled in {took:.0f} s; {how}: invoice read, {len(PHOTOS)} photos labelled, {clips} recordings heard, "
        f"{count} sentences read back: {len(wrong)} wrong"
    )
    return Verdict(figure=figure, passed=not wrong, details={"wrong": wrong})


LINE = Line(
    number=1,
    title="Fresh machine: `edgewise models pull starter`, then offline: embeddings, OCR, labels, transcription, speech",
    bar="all right: invoice exact, 5 labels, 5 of 5 recordings, speech word for word",
    count=FULL,
    small=1,
    measure=measure,
)

if __name__ == "__main__":
    if "--inside" in sys.argv:
        parser = argparse.ArgumentParser()
        parser.add_argument("--inside", nargs=3)
        home, report, count = parser.parse_args().inside
        Path(report).write_text(json.dumps(try_all(Path(home), int(count))))
    else:
        main(LINE, "tests.accept.senses_1")
