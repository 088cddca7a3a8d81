"""POST /v1/audio/transcriptions and POST /v1/audio/translations."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

from fastapi import APIRouter, Request
from fastapi.responses import Response

from edgewise.api.audio.transcription_schemas import (
    SEGMENTED,
    AnswerFormat,
    TranscriptionBody,
    TranslationBody,
    check,
    granularities,
)
from edgewise.api.audio.transcription_writer import MEDIA_TYPES, Transcript, body, gather, transcript_events
from edgewise.api.context import RequestContext
from edgewise.api.deps import ApiDependencies
from edgewise.api.form import FormShape, read_form
from edgewise.api.generate import RECEIPT_HEADER, admit, caller, wants_receipt_header
from edgewise.api.openapi import request_form
from edgewise.api.parse import Caller
from edgewise.api.schemas import validate
from edgewise.api.sse import EventStream, attended
from edgewise.pipeline.held import Hold
from edgewise.pipeline.listen import decoded, detector
from edgewise.pipeline.receipt_store import Outcome
from edgewise.pipeline.transcribe.run import TranscribeRun, start_transcription
from edgewise.pipeline.transcribe.task import Aim, TranscribeTask

TRANSCRIPTIONS: Final = "/v1/audio/transcriptions"
TRANSLATIONS: Final = "/v1/audio/translations"
ANY_MODEL: Final = "whisper-1"
"""OpenAI's name, which many programs send whatever they talk to: the first model for speech that there is."""
_FILE: Final = "file"
_LISTS: Final = frozenset(
    {"include", "keywords", "known_speaker_names", "known_speaker_references", "languages", "timestamp_granularities"}
)


def _shape(schema: type[TranslationBody]) -> FormShape:
    return FormShape(
        main=_FILE,
        what="the recording",
        files=frozenset({_FILE}),
        known=frozenset(schema.model_fields),
        texts=frozenset({"model", "prompt", "response_format", "language"}),
        lists=_LISTS,
        one_each={_FILE: "one recording is heard in a request"},
    )


@dataclass(frozen=True, slots=True)
class _Asked:
    task: TranscribeTask
    form: AnswerFormat
    times: frozenset[str]
    stream: bool
    receipt_header: bool
    hold: Hold


def transcription_router(deps: ApiDependencies) -> APIRouter:
    router = APIRouter(tags=["OpenAI"])

    @router.post(TRANSCRIPTIONS, openapi_extra=request_form(TranscriptionBody, _FILE))
    async def transcriptions(request: Request) -> Response:
        """What is said in a recording."""
        return await _heard(request, deps, TRANSCRIPTIONS, TranscriptionBody)

    @router.post(TRANSLATIONS, openapi_extra=request_form(TranslationBody, _FILE))
    async def translations(request: Request) -> Response:
        """What is said in a recording, in English."""
        return await _heard(request, deps, TRANSLATIONS, TranslationBody)

    return router


async def _heard(request: Request, deps: ApiDependencies, route: str, schema: type[TranslationBody]) -> Response:
    """The whole way of one request."""
    context = admit(request, deps, route)
    sound = deps.sound
    reading = read_form(
        request,
        _shape(schema),
        max_bytes=sound.max_bytes,
        silence_s=deps.limits.body_timeout_s,
        setting="audio.max_bytes",
    )
    form = await deps.requests.until_cut(reading)
    fields: Any = validate(schema, dict(form.fields))
    check(fields)
    stream = bool(getattr(fields, "stream", None))
    header = wants_receipt_header(request, stream=stream)
    hold = deps.media.held.hold()
    try:
        preparing = _task(deps, hold, fields, form.files[_FILE], caller(context, deps))
        task = await attended(request.receive, deps.requests.until_cut(preparing))
        return await _answer(
            request,
            deps,
            context,
            _Asked(task, fields.response_format or "json", granularities(fields), stream, header, hold),
        )
    except BaseException:
        hold.close()  # what has begun gives it back at its end
        raise


async def _task(
    deps: ApiDependencies, hold: Hold, fields: TranslationBody, data: bytes, asking: Caller
) -> TranscribeTask:
    """A validated form as a task. Raises `EdgewiseError`, naming the field."""
    name = None if fields.model == ANY_MODEL else fields.model
    model = await deps.models.open_listener(name, keep_alive_s=fields.keep_alive)
    limits = deps.sound
    samples, notes = await decoded(
        deps.media.process, hold, data, _FILE, max_bytes=limits.max_bytes, max_seconds=limits.max_seconds
    )
    aim: Aim = "transcribe" if isinstance(fields, TranscriptionBody) else "translate"
    return TranscribeTask(
        id=asking.request_id,
        model=model,
        detector=await detector(deps.models),
        samples=samples,
        aim=aim,
        **_guided(fields),
        temperature=fields.temperature,
        words="word" in granularities(fields),
        notes=notes,
        salt=asking.salt,
        key=asking.key_id,
        priority=asking.priority(model),
        deadline_s=asking.deadline_s(fields.timeout),
        privacy=asking.privacy(model),
        policy=asking.policy,
    )


def _guided(fields: TranslationBody) -> dict[str, Any]:
    """What the model is told beforehand. Names and words go the way of the prompt: that is what Whisper's is good for."""
    if not isinstance(fields, TranscriptionBody):
        return {"prompt": fields.prompt or ""}
    named = ", ".join(fields.keywords or ())
    return {
        "language": fields.language.lower() if fields.language else None,
        "languages": tuple(code.lower() for code in fields.languages or ()),
        "prompt": " ".join(filter(None, (fields.prompt, f"{named}." if named else ""))),
    }


async def _answer(request: Request, deps: ApiDependencies, context: RequestContext, asked: _Asked) -> Response:
    """Start, then one body or a stream of events. The client that leaves ends the run."""
    context.facts["model"] = asked.task.model.name
    if deps.log_content:
        context.facts |= {"prompts": [asked.task.prompt], "answer": context.transcript}
    run = await attended(request.receive, deps.requests.until_cut(_begin(deps, context, asked)))
    if asked.stream:
        events = transcript_events(run, context, keepalive_s=deps.limits.keepalive_s)
        return EventStream(events, send_timeout_s=deps.limits.send_timeout_s)
    found: Transcript = await attended(request.receive, gather(run, context))
    headers = {RECEIPT_HEADER: json.dumps(run.receipt().to_dict())} if asked.receipt_header else None
    return Response(body(run, found, asked.form, asked.times), media_type=MEDIA_TYPES[asked.form], headers=headers)


async def _begin(deps: ApiDependencies, context: RequestContext, asked: _Asked) -> TranscribeRun:
    """Start and attach in one turn: the record's owner closes a run that it knows."""
    record, task = context.record, asked.task
    assert record is not None
    record.stream, record.model = asked.stream, task.model.name

    def ended(outcome: Outcome) -> None:
        asked.hold.close()
        deps.receipts.ended(outcome)
        if outcome.fault is None:
            deps.metrics.real_time_factor.observe(outcome.total_s / task.seconds)

    run = await start_transcription(
        task,
        segmented=asked.form in SEGMENTED,
        clock=deps.clock.monotonic,
        hooks=deps.hooks,
        on_end=ended,
    )
    deps.requests.attach(record, run)
    return run
