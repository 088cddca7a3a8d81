"""POST /v1/audio/speech."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import partial
from typing import Final

from fastapi import APIRouter, Request
from fastapi.responses import Response

from edgewise.api.audio.speech_schemas import SpeechBody, check
from edgewise.api.audio.speech_writer import SoundStream, growing_sound, speech_events, whole_sound
from edgewise.api.context import RequestContext
from edgewise.api.deps import ApiDependencies
from edgewise.api.generate import RECEIPT_HEADER, admit, caller, read_body, wants_receipt_header
from edgewise.api.openapi import request_body
from edgewise.api.parse import Caller
from edgewise.api.schemas import validate
from edgewise.api.sse import EventStream, attended
from edgewise.models.media.sound_out import MEDIA_TYPES, SoundFormat
from edgewise.pipeline.receipt_store import Outcome
from edgewise.pipeline.speech import SpeechRun, SpeechTask, Spoken, start_speech

SPEECH: Final = "/v1/audio/speech"
MODEL_HEADER: Final = "X-Edgewise-Model"
VOICE_HEADER: Final = "X-Edgewise-Voice"
_DEFAULT: Final[SoundFormat] = "mp3"


@dataclass(frozen=True, slots=True)
class _Asked:
    """`whole`: the answer is sent when all of it is there."""

    task: SpeechTask
    format: SoundFormat
    events: bool
    whole: bool


def speech_router(deps: ApiDependencies) -> APIRouter:
    router = APIRouter(tags=["OpenAI"])

    @router.post(SPEECH, openapi_extra=request_body(SpeechBody))
    async def speech(request: Request) -> Response:
        """A text, spoken."""
        context = admit(request, deps, SPEECH)
        body = validate(SpeechBody, await read_body(request, deps))
        check(body)
        events = body.stream_format == "sse"
        whole = wants_receipt_header(request, stream=events)
        task = await _task(deps, body, caller(context, deps))
        return await _answer(request, deps, context, _Asked(task, body.response_format or _DEFAULT, events, whole))

    return router


async def _task(deps: ApiDependencies, body: SpeechBody, asking: Caller) -> SpeechTask:
    """A validated body as a task. Raises `EdgewiseError`, naming the field."""
    model = await deps.models.open_encoder("text-to-speech", body.model, keep_alive_s=body.keep_alive)
    return SpeechTask(
        id=asking.request_id,
        model=model,
        text=body.input,
        voice=body.voice,
        speed=1.0 if body.speed is None else body.speed,
        key=asking.key_id,
        priority=asking.priority(model),
        deadline_s=asking.deadline_s(body.timeout),
        privacy=asking.privacy(model),
        policy=asking.policy,
    )


async def _answer(request: Request, deps: ApiDependencies, context: RequestContext, asked: _Asked) -> Response:
    """The headers leave with the first sentence, so that what keeps it from being spoken is still an error with its status."""
    limits, format = deps.limits, asked.format
    context.facts["model"] = asked.task.model.name
    if deps.log_content:
        context.facts["prompts"] = [asked.task.text]
    run, first = await attended(request.receive, deps.requests.until_cut(_begin(deps, context, asked)))
    if asked.events:
        events = speech_events(run, first, format, context, keepalive_s=limits.keepalive_s)
        return EventStream(events, send_timeout_s=limits.send_timeout_s)
    headers = {MODEL_HEADER: run.model_name, VOICE_HEADER: first.voice}
    media_type = MEDIA_TYPES[format]
    if asked.whole or first.finish is not None:
        sound = await attended(request.receive, whole_sound(run, first, format))
        if asked.whole:
            headers[RECEIPT_HEADER] = json.dumps(run.receipt().to_dict())
        return Response(sound, headers=headers, media_type=media_type)
    return SoundStream(
        growing_sound(run, first, format),
        media_type=media_type,
        headers=headers,
        send_timeout_s=limits.send_timeout_s,
    )


async def _begin(deps: ApiDependencies, context: RequestContext, asked: _Asked) -> tuple[SpeechRun, Spoken]:
    """The run, attached in the turn in which it starts, so that whoever ends it knows it; and its first sentence."""
    record = context.record
    assert record is not None
    record.stream, record.model = not asked.whole, asked.task.model.name
    clock = deps.clock.monotonic
    run = await start_speech(asked.task, clock=clock, hooks=deps.hooks, on_end=partial(_ended, deps))
    deps.requests.attach(record, run)
    first = await run.receive()
    assert first is not None
    return run, first


def _ended(deps: ApiDependencies, outcome: Outcome) -> None:
    """Keep the receipt, and the figures of what was spoken to its end."""
    deps.receipts.ended(outcome)
    if outcome.fault is None and outcome.first_s is not None:
        (stage,) = outcome.receipt["stages"]
        deps.metrics.speech_first.observe(outcome.first_s)
        deps.metrics.speech_factor.observe(stage["speak_ms"] / stage["speech_ms"])
