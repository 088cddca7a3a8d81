"""A recording heard from beginning to end: speech found, language found, window after window with what came before as context."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import Final

from edgewise.models.media.rates import RATE
from edgewise.models.vad.spans import Span, windows
from edgewise.models.whisper.config import SECONDS
from edgewise.pipeline.transcribe.detect import Speech, find_speech
from edgewise.pipeline.transcribe.task import SAMPLE_BYTES, Segment, TranscribeTask
from edgewise.pipeline.transcribe.text import Parsed, Piece, parse_window
from edgewise.pipeline.transcribe.window import Account, WindowWriter, Written
from edgewise.pipeline.transcribe.words import UNSPACED, Word, place_words

_LEAST: Final = 0.25
"""Seconds of speech that are worth another window."""
_STEP: Final = 1.0
"""Least seconds by which a window goes on; text that ends earlier counts as all of its window."""
_FORGET: Final = 0.5
"""Text that was drawn above this temperature is no context for what follows."""


@dataclass(slots=True)
class Course:
    """What is known of a recording so far.

    Attributes:
        language: Code; "" while it is not known.
        language_prob: None where it was told.
        temperatures: At which the texts of the windows were kept.
        retries: Texts that were thrown away.
    """

    language: str = ""
    language_prob: float | None = None
    speech: Speech | None = None
    windows: int = 0
    retries: int = 0
    temperatures: list[float] = field(default_factory=list)


class Hearing:
    """One recording; `segments` hears it."""

    def __init__(self, task: TranscribeTask) -> None:
        ends = None if task.deadline_s is None else asyncio.get_running_loop().time() + task.deadline_s
        self._task = task
        self._writer = WindowWriter(task, ends)
        self._before: list[int] = []
        self._spoken_until = 0.0
        self.course = Course(language=task.language or ("" if task.model.tokens.multilingual else "en"))

    @property
    def account(self) -> Account:
        """What the engine has done for it so far."""
        return self._writer.account

    async def segments(self) -> AsyncGenerator[list[Segment], None]:
        """The segments of each window. Raises as of every engine."""
        task, course = self._task, self.course
        course.speech = speech = await find_speech(task, self._writer.left)
        spans = speech.spans if task.detector is None else windows(speech.spans, speech.probabilities, seconds=SECONDS)
        if task.prompt:
            self._before = task.model.tokenizer.encode(f" {task.prompt.strip()}", parse_special=False)
        for span in spans:
            at = span.start
            while at < span.end and speech.left(at, span.end) >= _LEAST:
                end = min(span.end, at + int(SECONDS * RATE))
                written, parsed = await self._window(at, end)
                if not written.silent:
                    words = await self._words(parsed, at, end)
                    yield [
                        self._segment(piece, at / RATE, written, speech, placed)
                        for piece, placed in zip(parsed.pieces, words, strict=True)
                    ]
                at += round(parsed.until * RATE) if parsed.until >= _STEP and parsed.pieces else end - at

    async def _window(self, start: int, end: int) -> tuple[Written, Parsed]:
        samples = self._task.samples[start * SAMPLE_BYTES : end * SAMPLE_BYTES]
        course, tokens = self.course, self._task.model.tokens
        if tokens.multilingual and not self._writer.language:
            await self._settle_language(samples)
        written = await self._writer.write(samples, self._before)
        course.windows += 1
        course.retries += written.tries - 1
        course.temperatures.append(written.temperature)
        parsed = parse_window(written.tokens, tokens.first_time, Span(start, end).seconds)
        if written.silent or written.temperature > _FORGET:
            self._before = []
        else:
            self._before += [token for piece in parsed.pieces for token in piece.tokens]
        return written, parsed

    async def _words(self, parsed: Parsed, start: int, end: int) -> Sequence[Sequence[Word]]:
        """Of each piece, in seconds of the recording."""
        if not self._task.words or not parsed.pieces:
            return [()] * len(parsed.pieces)
        offset = start / RATE
        samples = self._task.samples[start * SAMPLE_BYTES : end * SAMPLE_BYTES]
        frames = await self._writer.places(
            samples, [id for piece in parsed.pieces for id in piece.tokens], parsed.until
        )
        spaced = self.course.language not in UNSPACED or self._task.aim == "translate"
        placed = place_words(
            parsed.pieces, frames, self._task.model.tokenizer, spaced=spaced, before=self._spoken_until - offset
        )
        self._spoken_until = offset + max((words[-1].end for words in placed if words), default=0.0)
        return [
            [Word(one.word, round(offset + one.start, 2), round(offset + one.end, 2)) for one in words]
            for words in placed
        ]

    async def _settle_language(self, samples: bytes) -> None:
        course, tokens = self.course, self._task.model.tokens
        if not course.language:
            found, _ = await self._writer.languages(samples)
            asked = self._task.languages or tuple(found) or ("en",)
            course.language = max(asked, key=lambda code: found.get(code, 0.0))
            course.language_prob = found.get(course.language, 0.0)
        aim = tokens.translate if self._task.aim == "translate" else tokens.transcribe
        assert aim is not None
        self._writer.language = (tokens.languages[course.language], aim)

    def _segment(self, piece: Piece, offset: float, written: Written, speech: Speech, words: Sequence[Word]) -> Segment:
        start, end = offset + piece.start, offset + piece.end
        return Segment(
            start=round(start, 2),
            end=round(end, 2),
            text=self._task.model.tokenizer.decode(piece.tokens),
            tokens=piece.tokens,
            temperature=written.temperature,
            avg_logprob=round(written.avg_logprob, 4),
            compression_ratio=round(written.compression_ratio, 4),
            no_speech_prob=speech.silence(start, end),
            words=tuple(words),
        )
