"""Ten requests of all kinds at once: each gets the answer that it gets alone, and none waits longer than in one queue.

A device service with the starter's models answers three chats, a chat about a picture, vectors, a page that is read, a photo that
is labelled, two recordings and a sentence that is spoken; first each alone, then all at the same moment, over and over.
"""

from __future__ import annotations

import base64
import hashlib
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import httpx
import numpy as np
import pytest

from edgewise.models.encoders.ladder import cosines
from edgewise.models.encoders.record import GATE
from tests.accept.line import Line, NotRun, Verdict, main, progress
from tests.e2e.service import new_home, running
from tests.e2e.vision import invoice, photo, png
from tests.recordings import add_models, librivox, words

MODELS = (
    "smollm2-135m-instruct",
    "minilm",
    "efficientnet-lite0",
    "rapidocr",
    "whisper-tiny.en",
    "silero-vad",
    "kokoro",
)
SLOWEST = 1.5
"""Times what all of them take one after the other: a request that takes longer has been passed over."""
_TIMEOUT_S = 600

Asking = Callable[[httpx.Client], Any]


def chat(content: Any, tokens: int = 24) -> Asking:
    body = {
        "model": "smollm2-135m-instruct",
        "messages": [{"role": "user", "content": content}],
        "max_tokens": tokens,
        "temperature": 0,
    }
    return lambda http: posted(http, "/v1/chat/completions", json=body).json()["choices"][0]["message"]["content"]


def data_url(data: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(data).decode()


def posted(http: httpx.Client, path: str, **sent: Any) -> httpx.Response:
    answer = http.post(path, **sent)
    if answer.is_error:
        raise ValueError(f"{path}: {answer.status_code} {answer.text[:300]}")
    return answer


def hearing(recording: bytes) -> Asking:
    files = {"file": ("recording.wav", recording, "audio/wav")}
    asked = {"model": "whisper-tiny.en", "temperature": "0"}
    return lambda http: words(posted(http, "/v1/audio/transcriptions", files=files, data=asked).json()["text"])


def speech(http: httpx.Client) -> Any:
    """Its length stands for the sound: what is spoken may differ in the last bits with the company it is computed in."""
    body = {"model": "kokoro", "input": "The pump in hall two is dry.", "response_format": "pcm"}
    return len(posted(http, "/v1/audio/speech", json=body).content)


def vectors(http: httpx.Client) -> Any:
    body = {"model": "minilm", "input": ["a dry pump", "a wet cat"]}
    found = posted(http, "/v1/embeddings", json=body).json()["data"]
    return [one["embedding"] for one in found]


def same(name: str, found: Any, alone: Any) -> bool:
    """Vectors may come from another candidate of the encoder's ladder than before, which is swapped in when it has passed the
    gate; so the gate is what they are held to. All else is equal or wrong."""
    if name != "vectors" or isinstance(found, str):
        return bool(found == alone)
    return bool((cosines(np.asarray(found), np.asarray(alone)) >= GATE).all())


def seen(what: str, data: bytes, wanted: Callable[[Any], Any]) -> Asking:
    body = {"image": data_url(data)}
    return lambda http: wanted(posted(http, f"/edgewise/v1/vision/{what}", json=body).json())


def requests() -> dict[str, Asking]:
    clips = librivox()
    page = png(invoice())
    question = [
        {"type": "text", "text": "What does this page say?"},
        {"type": "image_url", "image_url": {"url": data_url(page)}},
    ]
    return {
        "chat-1": chat("Name a colour of the sky."),
        "chat-2": chat("Count from one to nine."),
        "chat-3": chat("What is a pump?", 48),
        "chat-picture": chat(question),
        "vectors": vectors,
        "page": seen("ocr", page, lambda answer: answer["text"]),
        "photo": seen("classify", photo("coffee.png"), lambda answer: answer["labels"][0]["name"]),
        "recording-1": hearing(clips[1].path.read_bytes()),
        "recording-2": hearing(clips[4].path.read_bytes()),
        "speech": speech,
    }


def at_once(http: httpx.Client, asked: Mapping[str, Asking]) -> dict[str, tuple[Any, float]]:
    """Answer and seconds of each."""
    together = Barrier(len(asked))

    def one(asking: Asking) -> tuple[Any, float]:
        together.wait(60)
        began = time.monotonic()
        try:
            found = asking(http)
        except (httpx.HTTPError, ValueError, KeyError) as error:
            found = f"failed: {error}"
        return found, time.monotonic() - began

    with ThreadPoolExecutor(len(asked)) as threads:
        return dict(zip(asked, threads.map(one, asked.values()), strict=True))


def measure(count: int) -> Verdict:
    """`count` rounds of ten."""
    try:
        asked = requests()
    except pytest.skip.Exception as reason:
        raise NotRun(str(reason)) from reason
    wrong, longest = [], 0.0
    with new_home(starter=False) as home:
        add_models(home, *MODELS)
        with (
            running(model=MODELS[0], home=home) as service,
            httpx.Client(base_url=service.url, timeout=_TIMEOUT_S, trust_env=False) as http,
        ):
            alone, serial = {}, 0.0
            for name, asking in asked.items():
                if count > 1:
                    asking(http)  # loads the model; the second time is what counts
                began = time.monotonic()
                alone[name] = asking(http)
                serial += time.monotonic() - began
                progress(f"{name} alone: {time.monotonic() - began:.2f} s")
            for number in range(count):
                for name, (found, took) in at_once(http, asked).items():
                    longest = max(longest, took)
                    if not same(name, found, alone[name]):
                        wrong.append(f"round {number}: {name} is {shown(found)} in company, {shown(alone[name])} alone")
                progress(f"round {number + 1} of {count}: {len(wrong)} wrong, longest {longest:.1f} s")
    figure = (
        f"{count * len(asked)} answers, {len(wrong)} differ from those alone; the slowest took {longest:.1f} s, "
        f"all alone and one after the other take {serial:.1f} s: {longest / serial:.2f}x"
    )
    return Verdict(
        figure=figure,
        passed=not wrong and longest <= SLOWEST * serial,
        correct=not wrong,
        details={"wrong": wrong, "longest_s": longest, "serial_s": serial},
    )


def shown(found: Any) -> str:
    text = str(found)
    return text if len(text) <= 120 else f"{text[:80]}... ({hashlib.sha256(text.encode()).hexdigest()[:8]})"


LINE = Line(
    number=7,
    title="Ten mixed requests (text, pictures, sound) at once: all right, no one starves",
    bar=f"every answer as it is alone; the slowest within {SLOWEST:g} times the time that all take one after the other",
    count=10,
    small=1,
    measure=measure,
)

if __name__ == "__main__":
    main(LINE, "tests.accept.senses_7")
