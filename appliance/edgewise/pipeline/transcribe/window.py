"""One window of sound through the engine: prompt, tokens, and another try where the text looks wrong."""

from __future__ import annotations

import asyncio
import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from edgewise.core.errors import DeadlineExceeded, EngineFault
from edgewise.engine.alignment import Alignment
from edgewise.engine.request import EncoderUse, GenerateRequest, RequestStats, SamplingParams, TokenChunk
from edgewise.models.multimodal.media import Media
from edgewise.models.whisper.config import TIME_STEP
from edgewise.models.whisper.rules import rules_text
from edgewise.pipeline.encoder_receipts import merged
from edgewise.pipeline.run_base import raise_reported
from edgewise.pipeline.transcribe.task import SAMPLE_BYTES, TranscribeTask
from edgewise.pipeline.transcribe.text import compression_ratio

TEMPERATURES: Final = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
"""Tried in this order (Radford et al. 2022, section 4.5)."""
_REPEATS: Final = 2.4
_UNSURE: Final = -1.0
_SILENT: Final = 0.6
_ALTERNATIVES: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """Attributes:
    tokens: Times among them; the end token is left out.
    avg_logprob: Over words and end.
    silent: The model takes the window for silence: nothing of it counts.
    tries: Texts that were written.
    """

    tokens: tuple[int, ...]
    text: str
    temperature: float
    avg_logprob: float
    compression_ratio: float
    silent: bool
    tries: int


@dataclass(slots=True)
class Account:
    """What the engine has done for the recording so far; times in seconds."""

    completion_tokens: int = 0
    prompt_tokens: int = 0
    queued_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    restarts: int = 0
    preemptions: int = 0
    encoders: tuple[EncoderUse, ...] = ()

    def add(self, stats: RequestStats | None) -> None:
        if stats is None:
            return
        self.prompt_tokens += stats.prompt_tokens
        self.completion_tokens += stats.completion_tokens
        self.queued_s = max(self.queued_s, stats.queued_s)
        self.prefill_s += stats.prefill_s
        self.decode_s += stats.decode_s
        self.restarts += stats.restarts
        self.preemptions += stats.preemptions
        self.encoders = merged((*self.encoders, *stats.encoders))


@dataclass(slots=True)
class WindowWriter:
    """Writes windows of one recording, one after the other.

    Attributes:
        language: Its token, and that of what is to be done; empty in a model for English alone.
    """

    task: TranscribeTask
    ends: float | None
    account: Account = field(default_factory=Account)
    language: tuple[int, ...] = ()
    _numbers: int = 0

    async def languages(self, samples: bytes) -> tuple[dict[str, float], float]:
        """Probability of each language that is likely, by code, and that nobody speaks. One token is drawn."""
        tokens = self.task.model.tokens
        chunks = await self._ask(samples, (tokens.start,), 1, temperature=0.0, rules=None, top=_ALTERNATIVES)
        top = dict(_top(chunks))
        found = {code: top[id] for code, id in tokens.languages.items() if id in top}
        total = sum(found.values())
        return {code: share / total for code, share in found.items()}, top.get(tokens.no_speech, 0.0)

    async def write(self, samples: bytes, before: Sequence[int]) -> Written:
        """The text of a window, the best of the tries.

        Args:
            samples: Of the window.
            before: Tokens of the text that came before.
        """
        given = self.task.temperature
        ladder = TEMPERATURES if not given else (given,)
        written = None
        for tries, temperature in enumerate(ladder, start=1):
            written = await self._try(samples, before, temperature, tries)
            if not _looks_wrong(written) or written.silent:
                break
        assert written is not None
        return written

    async def places(self, samples: bytes, said: Sequence[int], until: float) -> tuple[int, ...]:
        """The frame, of `TIME_STEP`, in which each token of a window's text begins, and where the last one ends.

        The text is read once more as OpenAI's code reads it for this: without times, and without what came before.

        Args:
            said: Without times and end.
            until: Second of the window up to which the text goes.
        """
        tokens = self.task.model.tokens
        head = (tokens.start, *self.language, tokens.no_times)
        alignment = Alignment(
            first=self.task.model.config.audio_tokens + len(head), frames=max(1, round(until / TIME_STEP))
        )
        chunks = await self._ask(
            samples, (*head, *said, tokens.end), 1, temperature=0.0, rules=None, top=0, alignment=alignment
        )
        frames = chunks[-1].frames
        if len(frames) != len(said) + 1:
            raise EngineFault(f"The engine told {len(frames)} places of {len(said)} tokens.")
        return frames

    async def _try(self, samples: bytes, before: Sequence[int], temperature: float, tries: int) -> Written:
        model = self.task.model
        tokens = model.tokens
        head = (tokens.previous, *before[-(model.config.max_text // 2 - 1) :]) if before else ()
        text = (*head, tokens.start, *self.language)
        room = min(model.config.max_text // 2, model.config.max_text - len(text))
        rules = rules_text(tokens, model.config.vocab_size, times=True)
        chunks = await self._ask(samples, text, room, temperature=temperature, rules=rules, top=0)
        ids = [id for chunk in chunks for id in chunk.tokens]
        logprobs = [one.logprob for chunk in chunks for one in chunk.logprobs or ()]
        counted = [logprob for id, logprob in zip(ids, logprobs, strict=True) if id <= tokens.end]
        body = tuple(id for id in ids if id != tokens.end)
        said = model.tokenizer.decode([id for id in body if id < tokens.end])
        average = sum(counted) / len(counted) if counted else 0.0
        silent = average < _UNSURE and (await self.languages(samples))[1] > _SILENT
        return Written(
            tokens=body,
            text=said,
            temperature=temperature,
            avg_logprob=average,
            compression_ratio=compression_ratio(said),
            silent=silent,
            tries=tries,
        )

    async def _ask(
        self,
        samples: bytes,
        text: Sequence[int],
        most: int,
        *,
        temperature: float,
        rules: str | None,
        top: int,
        alignment: Alignment | None = None,
    ) -> list[TokenChunk]:
        """All chunks of one request. Raises what the engine reports."""
        task, model = self.task, self.task.model
        count = model.config.audio_tokens
        self._numbers += 1
        request = GenerateRequest(
            id=f"{task.id}/{self._numbers}",
            prompt=(model.tokens.end,) * count + tuple(text),
            sampling=SamplingParams(
                max_tokens=most,
                temperature=temperature,
                seed=self._numbers,
                stop_token_ids=(model.tokens.end,),
                top_logprobs=top,
            ),
            salt=task.salt,
            key=task.key,
            priority=task.priority,
            deadline_s=self.left(),
            constraint=rules,
            media=(sound(samples, count),),
            alignment=alignment,
        )
        stream = await model.engine.submit(request)
        chunks: list[TokenChunk] = []
        try:
            async for chunk in stream:
                raise_reported(chunk)
                chunks.append(chunk)
        finally:
            await stream.aclose()
        if not chunks or chunks[-1].finish is None:
            raise EngineFault("The engine's stream ended without saying why: the text is cut.")
        self.account.add(chunks[-1].stats)
        return chunks

    def left(self) -> float | None:
        """Seconds of the request's deadline that are left; None without one. Raises `DeadlineExceeded` after it."""
        if self.ends is None:
            return None
        left = self.ends - asyncio.get_running_loop().time()
        if left <= 0:
            raise DeadlineExceeded("The request's deadline has passed before all of the recording was heard.")
        return left


def sound(samples: bytes, count: int) -> Media:
    """A window as the engine takes it: float32 at 16 kHz, at the beginning of a prompt."""
    return Media(
        kind="audio",
        start=0,
        count=count,
        digest=hashlib.sha256(b"audio\n" + samples).digest(),
        content=samples,
        shape=(len(samples) // SAMPLE_BYTES,),
    )


def _looks_wrong(written: Written) -> bool:
    return written.compression_ratio > _REPEATS or written.avg_logprob < _UNSURE


def _top(chunks: Sequence[TokenChunk]) -> list[tuple[int, float]]:
    return [(id, math.exp(logprob)) for chunk in chunks for one in chunk.logprobs or () for id, logprob in one.top]
