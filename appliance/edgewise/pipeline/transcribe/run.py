"""A transcription under way: hooks before, segments as they are heard, and the receipt."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import dataclass, replace
from typing import Final

from edgewise.core.errors import InvalidRequest, UnsupportedField
from edgewise.engine.api import Engine
from edgewise.engine.request import RequestStats
from edgewise.pipeline.encoder_receipts import of_encoder, of_engine
from edgewise.pipeline.hooks.hooks import Hooks, Passage
from edgewise.pipeline.hooks.protocol import Call, PromptText
from edgewise.pipeline.plan import Decision, Plan
from edgewise.pipeline.receipt_store import Outcome
from edgewise.pipeline.receipts import Precision, Usage
from edgewise.pipeline.run_base import RunBase
from edgewise.pipeline.text import TextChunk
from edgewise.pipeline.transcribe.hearing import Hearing
from edgewise.pipeline.transcribe.task import (
    DetectReceipt,
    Heard,
    ListenReceipt,
    Segment,
    TranscribeReceipt,
    TranscribeTask,
)

_WHY: Final = "Speech is heard on this device only."
_NO_DETECTOR: Final = (
    "Silence was told from speech by loudness alone: `edgewise models pull silero-vad` installs a model for it."
)


@dataclass(frozen=True, slots=True)
class _Window:
    """What the hearing gives: the segments of a window; the last one has none and `finish`."""

    segments: tuple[Segment, ...]
    finish: str | None


class _Windows:
    """The hearing as a stage's stream."""

    def __init__(self, hearing: Hearing) -> None:
        self._windows = self._all(hearing)

    def __aiter__(self) -> AsyncIterator[_Window]:
        return self._windows

    async def __anext__(self) -> _Window:
        return await anext(self._windows)

    async def aclose(self) -> None:
        await self._windows.aclose()

    async def _all(self, hearing: Hearing) -> AsyncGenerator[_Window, None]:
        async for segments in hearing.segments():
            yield _Window(tuple(segments), None)
        yield _Window((), "stop")


@dataclass(slots=True)
class _Part:
    """The one answer in the making."""

    stream: _Windows
    hearing: Hearing
    index: int = 0
    characters: int = 0

    @property
    def account(self) -> RequestStats | None:
        found = self.hearing.account
        return RequestStats(
            prompt_tokens=found.prompt_tokens,
            cached_tokens=0,
            completion_tokens=found.completion_tokens,
            queued_s=found.queued_s,
            prefill_s=found.prefill_s,
            decode_s=found.decode_s,
            preemptions=found.preemptions,
            restarts=found.restarts,
            encoders=found.encoders,
        )


class TranscribeRun(RunBase[TranscribeTask, _Part, Heard]):
    """A request under way."""

    @property
    def language(self) -> str:
        """Code of what is spoken; "" while it is not known, and where nobody speaks."""
        return self._parts[0].hearing.course.language

    @property
    def seconds(self) -> float:
        """How long the recording is."""
        return self.task.seconds

    @property
    def real_time_factor(self) -> float | None:
        """Time that it took over the length of the recording."""
        return (self._last_s - self._started_s) / self.seconds if self.seconds else None

    def usage(self) -> Usage:
        """Transcriptions are counted in seconds; these are the tokens behind them."""
        account = self._parts[0].hearing.account
        return Usage(
            prompt_tokens=account.prompt_tokens, completion_tokens=account.completion_tokens, cached_tokens=None
        )

    async def submit(self) -> None:
        await self._start([self._hear])

    async def _hear(self) -> _Part:
        hearing = Hearing(self.task)
        return _Part(_Windows(hearing), hearing)

    async def _take(self, part: _Part, chunk: _Window) -> Heard | None:
        self._last_s = self._clock()
        self._first_s = self._last_s if self._first_s is None and chunk.segments else self._first_s
        text = "".join(segment.text for segment in chunk.segments)
        text = text if part.characters else text.lstrip()
        offset, part.characters = part.characters, part.characters + len(text)
        if self._passage is None:
            return Heard(text=text, segments=chunk.segments, finish=chunk.finish)
        piece = TextChunk(
            sequence=0,
            offset=offset,
            text=text,
            token_ids=tuple(id for segment in chunk.segments for id in segment.tokens),
            finish="stop" if chunk.finish is not None else None,
        )
        shown = await self._passage.pass_on(piece)
        if shown is None:
            return Heard(text="", segments=chunk.segments, finish=chunk.finish)
        text = "".join(one for one in shown.ordered if isinstance(one, str))
        return Heard(text=text, segments=chunk.segments, finish=shown.finish)

    def receipt(self) -> TranscribeReceipt:
        task, hearing = self.task, self._parts[0].hearing
        course, account = hearing.course, hearing.account
        decision: Decision[Engine] = self.plan.decision("generate")
        info = decision.engine.info
        took = self.real_time_factor
        listen = ListenReceipt(
            stage="transcribe",
            where=decision.where,
            why=decision.reason,
            numeric_class=None if info is None else info.numeric_class,
            precision=None
            if info is None
            else Precision(dtype=info.dtype, kv_dtype=info.kv_dtype, quantize=info.quantize),
            queued_ms=_ms(account.queued_s),
            restarts=account.restarts,
            preemptions=account.preemptions,
            encoders=of_engine(task.model.name, [self._parts[0].account]),
            language=course.language,
            language_prob=None if course.language_prob is None else round(course.language_prob, 4),
            windows=course.windows,
            retries=course.retries,
            temperatures=tuple(course.temperatures),
            prefill_ms=_ms(account.prefill_s),
            decode_ms=_ms(account.decode_s),
            real_time_factor=None if took is None else round(took, 4),
        )
        detect = self._detect(hearing)
        return TranscribeReceipt(
            **self._common(),
            stages=(listen,) if detect is None else (detect, listen),
            warnings=(*task.notes, *(() if task.detector is not None else (_NO_DETECTOR,))),
        )

    def _detect(self, hearing: Hearing) -> DetectReceipt | None:
        detector, speech = self.task.detector, hearing.course.speech
        if detector is None or speech is None:
            return None
        info = detector.engine.info
        return DetectReceipt(
            stage="detect",
            where="local",
            why="Only where somebody speaks is heard: models invent words for silence.",
            numeric_class=None if info is None else info.numeric_class,
            precision=None,
            queued_ms=_ms(speech.queued_s),
            restarts=0,
            preemptions=0,
            encoders=of_encoder(detector, speech.device_s, inputs=speech.pieces),
            model=detector.name,
            audio_s=round(self.seconds, 3),
            speech_s=round(speech.seconds, 3),
            compute_ms=_ms(speech.compute_s),
        )


async def start_transcription(
    task: TranscribeTask,
    *,
    segmented: bool,
    clock: Callable[[], float] = time.monotonic,
    hooks: Hooks | None = None,
    on_end: Callable[[Outcome], None] | None = None,
) -> TranscribeRun:
    """Check the task, ask the hooks and begin.

    Args:
        segmented: Whether the answer shows segments: what hooks hold back or change has no times.

    Raises:
        ContentRefused, HookFailed: A hook refuses the prompt, or failed.
        InvalidRequest: The model does not know the language, or cannot translate.
    """
    _check(task)
    passage: Passage | None = None
    if hooks:
        call = Call(request_id=task.id, key=task.key, model=task.model.name, digest=task.model.digest)
        if segmented and hooks.filters(call):
            raise UnsupportedField(
                "Hooks of this service read and change what is written, which then has no times: ask for 'response_format' json "
                "or text.",
                param="response_format",
            )
        passed, passage = await hooks.admit_texts(call, [PromptText("prompt", task.prompt)])
        task = replace(task, prompt=passed[0].text)
    plan = Plan((Decision(stage="generate", where="local", reason=_WHY, engine=task.model.engine),))
    run = TranscribeRun(task, plan, clock=clock, passage=passage, on_end=on_end)
    await run.submit()
    return run


def _check(task: TranscribeTask) -> None:
    tokens, name = task.model.tokens, task.model.name
    if task.aim == "translate" and tokens.translate is None:
        raise InvalidRequest(f"'{name}' knows English alone and translates nothing: ask whisper-base.", param="model")
    known = tokens.languages or {"en": 0}
    given = {"language": [task.language] if task.language else [], "languages": list(task.languages)}
    for param, codes in given.items():
        unknown = next((code for code in codes if code not in known), None)
        if unknown is not None:
            shown = ", ".join(sorted(known))
            raise InvalidRequest(f"'{param}' has {unknown!r}: '{name}' knows {shown} (codes of ISO 639).", param=param)


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 3)
