"""Test double of the models of a voice session: loud sound is speech, and what was said and is answered is ordered beforehand."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from edgewise.core.errors import EdgewiseError, InvalidRequest
from edgewise.models.media.rates import RATE
from edgewise.models.vad.spans import FRAME
from edgewise.pipeline.receipts import Usage
from edgewise.pipeline.voice.protocols import Heard, Hints, Response, Sound, Speech, Told, Writing

LOUD = 8000
VOICE_RATE = 22_050


def speech(seconds: float, rate: int = RATE) -> bytes:
    """Loud samples."""
    return array("h", [LOUD if at // 24 % 2 else -LOUD for at in range(int(seconds * rate))]).tobytes()


def silence(seconds: float, rate: int = RATE) -> bytes:
    return bytes(2 * int(seconds * rate))


@dataclass(frozen=True)
class Piece:
    text: str
    finish: str | None = None


@dataclass
class DoubleWriting:
    """An answer of the given pieces; before each, `hold` must be set."""

    pieces: Sequence[str]
    hold: asyncio.Event
    finish: str = "stop"
    closed: bool = False

    async def chunks(self) -> AsyncIterator[Piece]:
        for number, text in enumerate(self.pieces, 1):
            await self.hold.wait()
            yield Piece(text, self.finish if number == len(self.pieces) else None)

    def usage(self) -> Usage:
        return Usage(prompt_tokens=10, completion_tokens=len(self.pieces), cached_tokens=4)

    def receipt(self) -> Mapping[str, Any]:
        return {"model": "double"}

    async def aclose(self) -> None:
        self.closed = True


@dataclass
class DoubleModels:
    """Attributes:
    said: What turns are understood as, in their order; the last one goes on.
    answers: The same for answers, each in pieces.
    spoken_s: Seconds of sound for each character; a phrase with others than those of ASCII has none.
    hear, write_on, speak_on: Cleared, transcription, writing and speaking wait.
    """

    said: list[str] = field(default_factory=lambda: ["What is the capital of France?"])
    answers: list[list[str]] = field(default_factory=lambda: [["Paris is ", "the capital. ", "It is large."]])
    context: int = 1000
    spoken_s: float = 0.02
    fault: EdgewiseError | None = None
    finish: str = "stop"
    hear: asyncio.Event = field(default_factory=asyncio.Event)
    write_on: asyncio.Event = field(default_factory=asyncio.Event)
    speak_on: asyncio.Event = field(default_factory=asyncio.Event)
    transcribed: list[bytes] = field(default_factory=list)
    cancelled: int = 0
    asked: list[tuple[Mapping[str, Any], ...]] = field(default_factory=list)
    writings: list[DoubleWriting] = field(default_factory=list)
    spoken: list[str] = field(default_factory=list)
    open_speech: int = 0
    prepared: int = 0

    def __post_init__(self) -> None:
        for event in (self.hear, self.write_on, self.speak_on):
            event.set()

    def tokens(self, text: str, /) -> int:
        return len(text.split())

    async def prepare(self) -> None:
        self.prepared += 1

    def check(self, hints: Hints) -> None:
        if hints.language not in (None, "en"):
            raise InvalidRequest("Only 'en' is known.", param="language")

    async def probabilities(self, samples: bytes, state: bytes) -> tuple[Sequence[float], bytes]:
        values = array("h", samples)
        assert len(values) % FRAME == 0
        found = [0.99 if max(values[at : at + FRAME]) > LOUD // 2 else 0.01 for at in range(0, len(values), FRAME)]
        await asyncio.sleep(0)
        return found, state + b"."

    async def transcribe(self, id: str, samples: bytes, hints: Hints) -> Heard:
        number = len(self.transcribed)
        self.transcribed.append(samples)
        try:
            await self.hear.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            self.transcribed.remove(samples)
            raise
        if self.fault is not None:
            raise self.fault
        text = self.said[min(number, len(self.said) - 1)]
        return Heard(text=text, seconds=len(samples) / 2 / RATE, receipt={"model": "ears"})

    async def write(self, id: str, messages: tuple[Mapping[str, Any], ...], max_tokens: int | None) -> Writing:
        pieces = self.answers[min(len(self.asked), len(self.answers) - 1)]
        self.asked.append(messages)
        writing = DoubleWriting(pieces, self.write_on, self.finish)
        self.writings.append(writing)
        return writing

    async def speak(self, id: str, text: str, how: Speech) -> AsyncGenerator[Sound, None]:
        self.open_speech += 1
        try:
            await self.speak_on.wait()
            if not text.isascii():
                return
            self.spoken.append(text)
            yield Sound(
                samples=speech(self.spoken_s * len(text) / how.speed, VOICE_RATE), rate=VOICE_RATE, compute_s=0.01
            )
        finally:
            self.open_speech -= 1


@dataclass
class Listener:
    """Keeps what a session tells, and counts for metrics."""

    told: list[Told] = field(default_factory=list)
    answers: list[Response] = field(default_factory=list)
    interruptions: int = 0

    async def tell(self, event: Told) -> None:
        self.told.append(event)

    def answered(self, response: Response, /) -> None:
        self.answers.append(response)

    def interrupted(self) -> None:
        self.interruptions += 1

    def kinds(self) -> list[str]:
        """Names of what was told, the same in a row once."""
        names = [type(one).__name__ for one in self.told]
        return [name for number, name in enumerate(names) if not number or names[number - 1] != name]
