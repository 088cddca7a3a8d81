"""One spoken answer: text as a model writes it, phrase by phrase to speech, and its sound at the pace of a listener.

Three tasks side by side, each a queue behind the one before; whoever cancels `Answer.run` ends all of them at once.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, Final

from edgewise.core.patience import end_task
from edgewise.models.media.resample import Resampler
from edgewise.pipeline.voice.conversation import SpokenPhrase
from edgewise.pipeline.voice.phrases import Phrases
from edgewise.pipeline.voice.protocols import (
    AudioDelta,
    Response,
    Sound,
    Speech,
    Tell,
    TextDelta,
    VoiceModels,
    Writing,
)
from edgewise.pipeline.voice.sound import WIDTH, Pace

LEAD_S: Final = 4.0
"""Sound leaves so far ahead of what is heard: enough for a network that stalls, little enough to drop at an interruption."""
_SLICE_S: Final = 0.1
"""Sound of one message."""
_SOUNDS_AHEAD: Final = 4
"""Pieces of speech that wait to be sent; more are not made before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerOptions:
    """Attributes:
    max_tokens: Of the answer; None for what is left of the context.
    rate: Samples a second of the sound.
    since: When the speaker ended, or the answer was asked for.
    """

    max_tokens: int | None
    rate: int
    speech: Speech
    since: float


class Answer:
    """An answer under way. `response` is filled as it grows."""

    def __init__(
        self, response: Response, models: VoiceModels, options: AnswerOptions, tell: Tell, clock: Callable[[], float]
    ) -> None:
        self.response = response
        self.pace = Pace(LEAD_S)
        self._models = models
        self._options = options
        self._tell = tell
        self._clock = clock
        self._writing: Writing | None = None
        self._finish: str | None = None
        self._phrases: asyncio.Queue[str | None] = asyncio.Queue()
        self._sounds: asyncio.Queue[tuple[SpokenPhrase, Sound] | None] = asyncio.Queue(_SOUNDS_AHEAD)

    async def run(self, messages: tuple[Mapping[str, Any], ...]) -> None:
        """Until the last sound was sent. Raises what the models raise."""
        response = self.response
        self._writing = await self._models.write(response.id, messages, self._options.max_tokens)
        try:
            await _side_by_side(
                self._write(self._writing), *(() if response.text_only else (self._speak(), self._send()))
            )
        finally:
            response.usage = self._writing.usage()
            response.worst_gap_s = self.pace.worst_gap_s
            await self._writing.aclose()
        response.receipt = self._writing.receipt()
        response.status = "completed"
        if self._finish in ("length", "content_filter"):
            response.status = "incomplete"
            response.reason = "max_output_tokens" if self._finish == "length" else "content_filter"

    async def _write(self, writing: Writing) -> None:
        cut = Phrases()
        async for piece in writing.chunks():
            self._finish = piece.finish or self._finish
            if piece.text:
                self.response.item.text += piece.text
                for phrase in cut.feed(piece.text):
                    self._phrases.put_nowait(phrase)
                await self._tell(TextDelta(self.response, piece.text))
        self._phrases.put_nowait(cut.flush())
        self._phrases.put_nowait(None)

    async def _speak(self) -> None:
        number = 0
        while (text := await self._phrases.get()) is not None:
            phrase = SpokenPhrase(text, 0.0)
            self.response.item.phrases.append(phrase)
            if not any(one.isalnum() for one in text):
                continue
            number += 1
            silent = True
            async with contextlib.aclosing(
                self._models.speak(f"{self.response.id}/{number}", text, self._options.speech)
            ) as sounds:
                async for sound in sounds:
                    silent = False
                    await self._sounds.put((phrase, sound))
            self.response.unspoken += silent
        await self._sounds.put(None)

    async def _send(self) -> None:
        resampler: Resampler | None = None
        phrase: SpokenPhrase | None = None
        while (given := await self._sounds.get()) is not None:
            phrase, sound = given
            resampler = resampler or Resampler(sound.rate, self._options.rate)
            self.response.speak_s += sound.compute_s
            await self._send_samples(phrase, resampler.feed(sound.samples))
        if resampler is not None and phrase is not None:
            await self._send_samples(phrase, resampler.flush())

    async def _send_samples(self, phrase: SpokenPhrase, samples: bytes) -> None:
        rate, response = self._options.rate, self.response
        phrase.ms += len(samples) / WIDTH / rate * 1000
        size = int(_SLICE_S * rate) * WIDTH
        for at in range(0, len(samples), size):
            if wait := self.pace.wait_s(self._clock()):
                await asyncio.sleep(wait)
            piece = samples[at : at + size]
            await self._tell(AudioDelta(response, piece))
            now = self._clock()
            if response.first_sound_s is None:
                response.first_sound_s = now - self._options.since
            self.pace.sent(len(piece) / WIDTH / rate, now)
            response.speech_s = self.pace.sent_s


async def _side_by_side(*work: Coroutine[Any, Any, None]) -> None:
    """Until all have ended, or one has failed; none is left running."""
    tasks = [asyncio.create_task(one) for one in work]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in tasks:
            if task.done():
                task.result()
    finally:
        for task in tasks:
            await end_task(task)
