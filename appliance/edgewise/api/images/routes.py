"""POST /v1/images/generations and POST /v1/images/edits."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from edgewise.api.context import RequestContext
from edgewise.api.deps import ApiDependencies
from edgewise.api.generate import admit, caller, read_body
from edgewise.api.images.form import read_form
from edgewise.api.images.schemas import EditBody, ImageBody, check, size_of
from edgewise.api.images.writer import PictureForm, picture_events, whole_answer
from edgewise.api.openapi import request_body
from edgewise.api.parse import Caller
from edgewise.api.responses import json_response
from edgewise.api.schemas import validate
from edgewise.api.sse import EventStream, attended
from edgewise.engine.pictures.request import DiffuseParams
from edgewise.pipeline.pictures import PictureRun, PictureTask, start_pictures
from edgewise.pipeline.seeds import normalize_seed

GENERATIONS = "/v1/images/generations"
EDITS = "/v1/images/edits"


@dataclass(frozen=True, slots=True)
class _Asked:
    task: PictureTask
    form: PictureForm


def images_router(deps: ApiDependencies) -> APIRouter:
    router = APIRouter(tags=["OpenAI"])

    @router.post(GENERATIONS, openapi_extra=request_body(ImageBody))
    async def generations(request: Request) -> Response:
        context = admit(request, deps, GENERATIONS)
        body = validate(ImageBody, await read_body(request, deps))
        return await _answer(request, deps, context, await prepare(deps, body, caller(context, deps), "generation"))

    @router.post(EDITS)
    async def edits(request: Request) -> Response:
        context = admit(request, deps, EDITS)
        limits = deps.limits
        reading = read_form(request, max_bytes=limits.max_body_bytes, silence_s=limits.body_timeout_s)
        form = await deps.requests.until_cut(reading)
        body = validate(EditBody, form.fields)
        asked = await prepare(deps, body, caller(context, deps), "edit")
        # Decoders of hostile files belong into the engine's process: it refuses what is no picture.
        params = replace(asked.task.params, image=form.image, mask=form.mask)
        if body.strength is not None:
            params = replace(params, strength=body.strength)
        return await _answer(request, deps, context, replace(asked, task=replace(asked.task, params=params)))

    return router


async def prepare(deps: ApiDependencies, body: ImageBody, caller: Caller, kind: Any) -> _Asked:
    """A validated body as a task. Raises `EdgewiseError`, naming the field."""
    ignored = check(body)
    width, height = size_of(body.size)
    model = await deps.models.open_pictures(body.model, keep_alive_s=body.keep_alive)
    form = PictureForm(
        kind=kind,
        stream=bool(body.stream),
        output=body.output_format or "png",
        quality=100 if body.output_compression is None else body.output_compression,
    )
    task = PictureTask(
        id=caller.request_id,
        model=model,
        params=DiffuseParams(
            prompt=body.prompt,
            negative_prompt=body.negative_prompt or "",
            width=width,
            height=height,
            steps=body.steps,
            guidance=body.guidance,
            cache=body.step_cache or 0.0,
            previews=body.partial_images or 0,
        ),
        n=body.n or 1,
        seed=None if body.seed is None else normalize_seed(body.seed),
        key=caller.key_id,
        priority=caller.priority(model),
        deadline_s=caller.deadline_s(body.timeout),
        privacy=caller.privacy(model),
        policy=caller.policy,
        ignored=ignored,
    )
    return _Asked(task, form)


async def _answer(request: Request, deps: ApiDependencies, context: RequestContext, asked: _Asked) -> Response:
    """Start, then one body or a stream of events. The client that leaves ends the run."""
    task, form = asked.task, asked.form
    context.facts["model"] = task.model.name
    if deps.log_content:
        context.facts["prompts"] = [task.params.prompt]
    run = await attended(request.receive, deps.requests.until_cut(_begin(deps, context, asked)))
    created = int(deps.clock.time())
    if form.stream:
        events = picture_events(run, form, context, created, keepalive_s=deps.limits.keepalive_s)
        return EventStream(events, send_timeout_s=deps.limits.send_timeout_s)
    return json_response(await attended(request.receive, whole_answer(run, form, created)))


async def _begin(deps: ApiDependencies, context: RequestContext, asked: _Asked) -> PictureRun:
    """Start and attach in one turn: the record's owner closes a run that it knows."""
    record = context.record
    assert record is not None
    record.stream, record.model = asked.form.stream, asked.task.model.name
    run = await draw(deps, asked.task)
    deps.requests.attach(record, run)
    return run


async def draw(deps: ApiDependencies, task: PictureTask) -> PictureRun:
    """`start_pictures` with this service's planner, hooks and receipts: the one way to a picture here."""
    clock = deps.clock.monotonic
    return await start_pictures(
        task, deps.planner, clock=clock, hooks=deps.hooks, on_end=deps.receipts.ended, pressure=deps.pressure
    )
