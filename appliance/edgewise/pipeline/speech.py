"""Have a voice speak a text: hooks, one request to its engine, and the sound sentence by sentence as it is made."""

from __future__ import annotations

import time
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from edgewise.core.priority import Priority
from edgewise.core.privacy import Privacy
from edgewise.engine.encoders.request import EncodeChunk, EncoderEngine, EncodeRequest, EncodeStream
from edgewise.engine.request import RequestStats
from edgewise.pipeline.encoder_receipts import of_encoder
from edgewise.pipeline.hooks.hooks import Hooks, Passage
from edgewise.pipeline.hooks.protocol import Call, PromptText
from edgewise.pipeline.model import ServedEncoder
from edgewise.pipeline.plan import Decision, Plan, PolicyName
from edgewise.pipeline.receipt_store import Outcome
from edgewise.pipeline.receipts import Receipt, StageReceipt, Usage
from edgewise.pipeline.run_base import RunBase, raise_reported

_WHY: Final = "Voices speak on this device only."
SAMPLE_BYTES: Final = 2
_MAX_SCRIPTS: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeechTask:
    """One request; what is not said here is as in `pipeline.task.Task`.

    Attributes:
        text: What is spoken.
        voice: One of the model's; None for its first.
        speed: 1 is the voice's own.
    """

    id: str
    model: ServedEncoder
    text: str
    voice: str | None = None
    speed: float = 1.0
    key: str = ""
    priority: Priority = Priority.INTERACTIVE
    deadline_s: float | None = None
    privacy: Privacy = Privacy.PRIVATE
    policy: PolicyName | None = None
    ignored: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Spoken:
    """A sentence of the answer, or a part of a long one.

    Attributes:
        samples: Signed 16 bits each, one channel, machine order.
        rate: Samples a second, the same in all parts.
        voice: Who speaks.
    """

    samples: bytes
    rate: int
    voice: str
    finish: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeakReceipt(StageReceipt):
    """`runs` are sentences, and parts of long ones; `speech_ms` is how long the speech is, `speak_ms` how long it was computed,
    `first_ms` when its first sentence was there. `unspoken` counts the different characters that have no sound: receipts are
    kept, and the characters themselves would be a text in another script."""

    voice: str | None
    runs: int
    speech_ms: float
    speak_ms: float
    first_ms: float | None
    unspoken: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeechReceipt(Receipt):
    """The receipt of spoken text."""

    stages: tuple[SpeakReceipt, ...]


@dataclass(slots=True)
class _Speech:
    """The answer in the making; times in seconds."""

    stream: EncodeStream
    index: int = 0
    runs: int = 0
    speech_s: float = 0.0
    compute_s: float = 0.0
    device_s: float = 0.0
    queued_s: float = 0.0
    restarts: int = 0
    voice: str | None = None
    unspoken: str = ""

    @property
    def account(self) -> RequestStats | None:
        """In the words of an answer of text: nothing is read, and all its time is writing."""
        return RequestStats(
            prompt_tokens=0,
            cached_tokens=0,
            completion_tokens=0,
            queued_s=self.queued_s,
            prefill_s=0.0,
            decode_s=self.compute_s,
            preemptions=0,
            restarts=self.restarts,
        )

    def note(self, chunk: EncodeChunk, spoken: Spoken) -> None:
        self.runs += 1
        self.speech_s += len(spoken.samples) / SAMPLE_BYTES / spoken.rate
        self.voice = spoken.voice
        self.unspoken = str(chunk.result.get("unspoken", self.unspoken))
        if chunk.stats is not None:
            self.compute_s += chunk.stats.compute_s
            self.device_s += chunk.stats.device_s
            self.queued_s = max(self.queued_s, chunk.stats.queued_s)
            self.restarts = chunk.stats.restarts


class SpeechRun(RunBase[SpeechTask, _Speech, Spoken]):
    """A request under way."""

    def usage(self) -> Usage:
        """Speech is not counted in tokens."""
        return Usage(prompt_tokens=0, completion_tokens=0, cached_tokens=None)

    async def submit(self) -> None:
        """Queue it. Raises as the engine does."""
        await self._start([partial(self._speech)])

    async def _speech(self) -> _Speech:
        task = self.task
        options: dict[str, Any] = {"speed": task.speed}
        request = EncodeRequest(
            id=task.id,
            content=task.text.encode(),
            options=options if task.voice is None else {**options, "voice": task.voice},
            key=task.key,
            priority=task.priority,
            deadline_s=task.deadline_s,
        )
        return _Speech(await task.model.engine.submit(request))

    async def _take(self, part: _Speech, chunk: EncodeChunk) -> Spoken:
        """The hooks hear of the last sentence before it is told; one that fails ends the run."""
        self._last_s = self._clock()
        raise_reported(chunk)
        self._first_s = self._last_s if self._first_s is None else self._first_s
        spoken = Spoken(
            samples=chunk.content,
            rate=int(chunk.result["rate"]),
            voice=str(chunk.result["voice"]),
            finish=chunk.finish,
        )
        part.note(chunk, spoken)
        if self._passage is not None:
            await self._passage.pass_bytes(0, spoken.samples, last=spoken.finish is not None)
        return spoken

    def receipt(self) -> SpeechReceipt:
        decision: Decision[EncoderEngine] = self.plan.decision("speak")
        info = decision.engine.info
        return SpeechReceipt(
            **self._common(),
            stages=tuple(
                SpeakReceipt(
                    stage=decision.stage,
                    where=decision.where,
                    why=decision.reason,
                    numeric_class=None if info is None else info.numeric_class,
                    precision=None,
                    queued_ms=_ms(speech.queued_s),
                    restarts=speech.restarts,
                    preemptions=0,
                    encoders=of_encoder(self.task.model, speech.device_s, inputs=speech.runs),
                    voice=speech.voice,
                    runs=speech.runs,
                    speech_ms=_ms(speech.speech_s),
                    speak_ms=_ms(speech.compute_s),
                    first_ms=None if self.first_token_s is None else _ms(self.first_token_s),
                    unspoken=len(speech.unspoken),
                )
                for speech in self._parts
            ),
            warnings=tuple(_left_out(speech.unspoken) for speech in self._parts if speech.unspoken),
        )


async def start_speech(
    task: SpeechTask,
    *,
    clock: Callable[[], float] = time.monotonic,
    hooks: Hooks | None = None,
    on_end: Callable[[Outcome], None] | None = None,
) -> SpeechRun:
    """Ask the hooks and queue a request.

    Raises:
        ContentRefused, HookFailed: A hook refuses the text, or failed.
        InvalidRequest: The model has no such voice, or there is nothing to speak.
        QueueFull, EngineUnavailable, OutOfMemory, UnsupportedModel: The engine takes no more, is not there, or cannot be.
    """
    task, passage = (task, None) if not hooks else await _admit(task, hooks)
    plan = Plan((Decision(stage="speak", where="local", reason=_WHY, engine=task.model.engine),))
    run = SpeechRun(task, plan, clock=clock, passage=passage, on_end=on_end)
    await run.submit()
    return run


async def _admit(task: SpeechTask, hooks: Hooks) -> tuple[SpeechTask, Passage]:
    """The task with the text that the hooks let through."""
    call = Call(request_id=task.id, key=task.key, model=task.model.name, digest=task.model.digest)
    passed, passage = await hooks.admit_texts(call, [PromptText("input", task.text)])
    return replace(task, text=passed[0].text), passage


def _left_out(characters: str) -> str:
    """How many and of which scripts, by the first word of their names in Unicode; never which, and in no order of theirs."""
    letters = {one for one in characters if unicodedata.category(one)[0] in "LM"}
    scripts = sorted({unicodedata.name(one, "?").split()[0] for one in letters})[:_MAX_SCRIPTS]
    shown = ", ".join(scripts if len(letters) == len(characters) else [*scripts, "signs"])
    return f"Characters that have no sound were left out ({shown}): {len(characters)}, each counted once."


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 3)
