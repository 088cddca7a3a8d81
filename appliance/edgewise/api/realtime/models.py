"""The models of this device, as a voice session asks them: each by the same tasks as its own route."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from typing import Any

import numpy as np

from edgewise.api.deps import ApiDependencies
from edgewise.api.generate import start_task
from edgewise.api.parse import Caller
from edgewise.api.realtime.configuration import ModelNames
from edgewise.api.requests import RequestRecord
from edgewise.core.errors import Cancelled, EdgewiseError, InvalidRequest, ModelNotFound, error_class
from edgewise.core.log import get_logger
from edgewise.engine.encoders.request import EncodeRequest
from edgewise.models.vad.silero import STATE_BYTES
from edgewise.pipeline.encode import encode
from edgewise.pipeline.listener import ServedListener
from edgewise.pipeline.model import ServedEncoder, ServedModel
from edgewise.pipeline.receipts import Usage
from edgewise.pipeline.run import Run
from edgewise.pipeline.speech import SpeechTask, start_speech
from edgewise.pipeline.task import ChatInput, Sampling, Task
from edgewise.pipeline.text import TextChunk
from edgewise.pipeline.transcribe.run import start_transcription
from edgewise.pipeline.transcribe.task import TranscribeTask
from edgewise.pipeline.voice.protocols import Heard, Hints, Sound, Speech, VoiceModels, Writing

log = get_logger(__name__)


class DeviceModels:
    """A `VoiceModels`. Labels, class and deadline of every request are the session's.

    Args:
        chat, listener, speaker, detector: One for each role.
    """

    def __init__(
        self,
        deps: ApiDependencies,
        asking: Caller,
        chat: ServedModel,
        listener: ServedListener,
        speaker: ServedEncoder,
        detector: ServedEncoder,
    ) -> None:
        self._deps = deps
        self._asking = asking
        self._chat = chat
        self._listener = listener
        self._speaker = speaker
        self._detector = detector
        self._frames = 0

    @property
    def context(self) -> int:
        return self._chat.context

    def tokens(self, text: str, /) -> int:
        return len(self._chat.tokenizer.encode(text, parse_special=False))

    async def prepare(self) -> None:
        names = (self._detector.name, self._listener.name, self._chat.name, self._speaker.name)
        for name, result in zip(names, await asyncio.gather(*map(self._load, names)), strict=True):
            if result is not None:  # its first use tells the client
                log.warning("voice_model_not_loaded", model=name, code=result.code, message=result.message)

    async def _load(self, name: str) -> EdgewiseError | None:
        try:
            await self._deps.models.load(name)
        except EdgewiseError as error:
            return error
        return None

    def check(self, hints: Hints) -> None:
        known = self._listener.tokens.languages or {"en": 0}
        if hints.language is not None and hints.language not in known:
            param = "session.audio.input.transcription.language"
            raise InvalidRequest(
                f"'{param}' is '{hints.language}': '{self._listener.name}' knows {', '.join(sorted(known))} (codes of ISO 639).",
                param=param,
            )

    async def probabilities(self, samples: bytes, state: bytes) -> tuple[Sequence[float], bytes]:
        self._frames += 1
        request = EncodeRequest(
            id=f"{self._asking.request_id}/vad-{self._frames}",
            content=(state or bytes(STATE_BYTES)) + _floats(samples),
            options={"stream": True},
            key=self._asking.key_id,
            priority=self._asking.priority(self._detector),
        )
        answer = (await encode(self._detector, request)).content
        return memoryview(answer[STATE_BYTES:]).cast("f").tolist(), answer[:STATE_BYTES]

    async def transcribe(self, id: str, samples: bytes, hints: Hints) -> Heard:
        asking, listener = self._asking, self._listener
        task = TranscribeTask(
            id=f"{asking.request_id}/{id}/{uuid.uuid4().hex[:8]}",
            model=listener,
            detector=self._detector,
            samples=_floats(samples),
            language=hints.language,
            prompt=hints.prompt or "",
            salt=asking.salt,
            key=asking.key_id,
            priority=asking.priority(listener),
            deadline_s=asking.deadline_s(None),
            privacy=asking.privacy(listener),
            policy=asking.policy,
        )
        deps = self._deps
        run = await start_transcription(
            task, segmented=False, clock=deps.clock.monotonic, hooks=deps.hooks, on_end=deps.receipts.ended
        )
        try:
            text = "".join([piece.text async for piece in run.chunks()])
            return Heard(text=text, seconds=run.seconds, receipt=run.receipt().to_dict())
        finally:
            await run.aclose()

    async def write(self, id: str, messages: tuple[Mapping[str, Any], ...], max_tokens: int | None) -> Writing:
        asking, chat, deps = self._asking, self._chat, self._deps
        task = Task(
            id=id,
            model=chat,
            input=ChatInput(messages),
            sampling=Sampling(max_tokens=max_tokens, fit_context=True),
            salt=asking.salt,
            key=asking.key_id,
            priority=asking.priority(chat),
            deadline_s=asking.deadline_s(None),
            privacy=asking.privacy(chat, asking.privacy(self._listener)),
            policy=asking.policy,
        )
        key = None if asking.key is None else asking.key.name
        record = deps.requests.enter(id=id, route="/v1/realtime", key=key, priority=task.priority)
        record.stream, record.model = True, chat.name
        try:
            run = await deps.requests.until_cut(self._begin(task, record))
        except BaseException as error:
            await deps.requests.end(record, status=_status_of(error))
            raise
        return _Written(run, record, deps)

    async def _begin(self, task: Task, record: RequestRecord) -> Run:
        """Start and attach in one turn, as `api.generate.begin` does."""
        run = await start_task(self._deps, task)
        self._deps.requests.attach(record, run)
        return run

    async def speak(self, id: str, text: str, how: Speech) -> AsyncGenerator[Sound, None]:
        asking, speaker, deps = self._asking, self._speaker, self._deps
        task = SpeechTask(
            id=id,
            model=speaker,
            text=text,
            voice=how.voice,
            speed=how.speed,
            key=asking.key_id,
            priority=asking.priority(speaker),
            deadline_s=asking.deadline_s(None),
            privacy=asking.privacy(speaker),
            policy=asking.policy,
        )
        try:
            run = await start_speech(task, clock=deps.clock.monotonic, hooks=deps.hooks, on_end=deps.receipts.ended)
        except InvalidRequest as error:
            if error.param != "input":
                raise
            return  # a phrase in a script that the voice has no sound for
        try:
            spoken_s = 0.0
            async for piece in run.chunks():
                total_s = sum(stage.speak_ms for stage in run.receipt().stages) / 1e3
                yield Sound(samples=piece.samples, rate=piece.rate, compute_s=total_s - spoken_s)
                spoken_s = total_s
        finally:
            await run.aclose()


class _Written:
    """A `Writing`: a run and its place among the requests in flight."""

    def __init__(self, run: Run, record: RequestRecord, deps: ApiDependencies) -> None:
        self._run = run
        self._record = record
        self._deps = deps
        self._started = deps.clock.monotonic()

    def chunks(self) -> AsyncIterator[TextChunk]:
        return self._run.chunks()

    def usage(self) -> Usage:
        return self._run.usage()

    def receipt(self) -> Mapping[str, Any]:
        return self._run.receipt().to_dict()

    async def aclose(self) -> None:
        run, deps = self._run, self._deps
        fault = self._record.error = run.fault
        status = 200 if fault is None else (error_class(fault) or EdgewiseError).http_status
        await deps.requests.end(self._record, status=status)
        deps.metrics.answered(run.model_name, run.usage(), deps.clock.monotonic() - self._started)


async def open_models(
    deps: ApiDependencies, asking: Caller, asked: Mapping[str, str]
) -> tuple[VoiceModels, ModelNames]:
    """The models that a URL names, by default the first that is installed for each role.

    Raises:
        ModelNotFound: One is not installed.
        InvalidRequest: One has another role, or no chat template.
    """
    chat = await deps.models.open(asked.get("model") or await _first_chat(deps))
    if chat.template is None:
        raise InvalidRequest(f"The model '{chat.name}' has no chat template: it cannot converse.", param="model")
    listener = await deps.models.open_listener(asked.get("transcription_model"))
    speaker = await deps.models.open_encoder("text-to-speech", asked.get("speech_model"))
    detector = await deps.models.open_encoder("vad", None)
    names = ModelNames(chat=chat.name, transcription=listener.name, speech=speaker.name, vad=detector.name)
    return DeviceModels(deps, asking, chat, listener, speaker, detector), names


async def _first_chat(deps: ApiDependencies) -> str:
    """The first model that converses, those that are loaded at start before others."""
    cards = [card for card in await deps.models.cards() if card.role == "llm" and card.chat is not False]
    pinned = {model.name for model in deps.models.pinned()}
    for card in sorted(cards, key=lambda card: card.name not in pinned):
        return card.name
    raise ModelNotFound("No model here converses: `edgewise models pull starter` gets one.", param="model")


def _status_of(error: BaseException) -> int:
    """That HTTP would have; what nobody has foreseen is a fault of ours."""
    if isinstance(error, EdgewiseError):
        return error.http_status
    return Cancelled.http_status if isinstance(error, asyncio.CancelledError) else EdgewiseError.http_status


def _floats(samples: bytes) -> bytes:
    """16-bit samples as float32."""
    return (np.frombuffer(samples, dtype="<i2").astype("<f4") / 32768).tobytes()
