"""/edgewise/v1/pipelines: which there are, and running one as JSON or as a stream of events."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncGenerator, Mapping
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, Field

from edgewise.api.context import RequestContext
from edgewise.api.deps import ApiDependencies
from edgewise.api.errors import error_body
from edgewise.api.faults import with_faults
from edgewise.api.generate import admit, caller, read_body, start_task
from edgewise.api.images.routes import draw
from edgewise.api.openapi import request_body
from edgewise.api.parse import Caller
from edgewise.api.priority import priority_in_force
from edgewise.api.privacy import privacy_in_force
from edgewise.api.requests import RequestRecord
from edgewise.api.responses import json_response
from edgewise.api.schemas import MAX_TIMEOUT_S, validate
from edgewise.api.sse import DONE, KEEP_ALIVE, EventStream, attended, sse
from edgewise.pipeline.chains.chain import Chain
from edgewise.pipeline.chains.diffuse import Diffuse
from edgewise.pipeline.chains.explain import explain_pipeline
from edgewise.pipeline.chains.generate import Generate
from edgewise.pipeline.chains.kinds import Kinds
from edgewise.pipeline.chains.load import Pipelines, show_pipeline
from edgewise.pipeline.chains.stage_run import Asked, ChainPiece
from edgewise.pipeline.pictures import PictureTask, explain_pictures
from edgewise.pipeline.plan import Plan
from edgewise.pipeline.run import explain
from edgewise.pipeline.seeds import draw_seed
from edgewise.pipeline.task import Task

ROUTE = "/edgewise/v1/pipelines"
PIPELINE = ROUTE + "/{name}"


class PipelineBody(BaseModel):
    """Attributes:
    input: Texts by the names of the pipeline's inputs.
    seed: Stages derive theirs from it.
    timeout: Seconds for all of it.
    """

    model_config = ConfigDict(strict=True, extra="forbid")

    input: dict[str, str] = Field(default_factory=dict)
    stream: bool | None = None
    seed: Annotated[int, Field(ge=0, lt=2**53)] | None = None
    timeout: Annotated[float, Field(gt=0, le=MAX_TIMEOUT_S)] | None = None


class PlannedBody(PipelineBody):
    """What `POST /edgewise/v1/plan` takes of a pipeline: its name, and what its route would take."""

    pipeline: str


async def plan_pipeline(deps: ApiDependencies, body: dict[str, Any], caller: Caller) -> dict[str, Any]:
    """Where the stages of a pipeline would run and why; see `pipeline.chains.explain`.

    Raises:
        EdgewiseError: It could not be run so; the message names the field or the stage.
    """
    asked, pipelines = validate(PlannedBody, body), pipelines_of(deps)
    pipeline = await asyncio.to_thread(pipelines.get, asked.pipeline)
    return await explain_pipeline(pipeline, pipelines.kinds, asked_of(asked, caller))


def stage_kinds(deps: ApiDependencies) -> Kinds:
    """The kinds of stages that this build has back ends for."""

    async def texts(task: Task, missing: int) -> Plan:
        return await explain(task, deps.planner, missing)

    async def pictures(task: PictureTask, missing: int) -> Plan:
        return await explain_pictures(task, deps.planner, missing)

    return {
        "generate": Generate(deps.models, partial(start_task, deps), deps.labels, texts),
        "diffuse": Diffuse(deps.models, partial(draw, deps), deps.labels, pictures),
    }


def pipelines_of(deps: ApiDependencies) -> Pipelines:
    return Pipelines(deps.pipelines_folder, stage_kinds(deps))


def pipelines_router(deps: ApiDependencies) -> APIRouter:
    router = APIRouter(tags=["Edgewise"])
    pipelines = pipelines_of(deps)

    @router.get(ROUTE)
    async def list_pipelines() -> Response:
        found, faults = await asyncio.to_thread(pipelines.all)
        shown = [show_pipeline(found[name]) for name in sorted(found)]
        return json_response({"object": "list", "data": shown, "faults": [fault.message for fault in faults]})

    @router.post(PIPELINE, openapi_extra=request_body(PipelineBody))
    async def run_pipeline(request: Request, name: str) -> Response:
        context = admit(request, deps, ROUTE)
        body = validate(PipelineBody, await read_body(request, deps))
        pipeline = await asyncio.to_thread(pipelines.get, name)
        assert context.record is not None
        context.facts["pipeline"] = name
        asked = asked_of(body, caller(context, deps))
        chain = begin_chain(deps, context.record, Chain(pipeline, pipelines.kinds, asked))
        if body.stream:
            events = _events(chain, context, keepalive_s=deps.limits.keepalive_s)
            return EventStream(events, send_timeout_s=deps.limits.send_timeout_s)
        return json_response(await attended(request.receive, whole_answer(chain)))

    return router


def asked_of(body: PipelineBody, caller: Caller) -> Asked:
    """A validated body as the chain wants it. Raises `NotPermitted` where the header would loosen a label."""
    floor = caller.labels.strictest(caller.label)
    return Asked(
        id=caller.request_id,
        input=body.input,
        seed=draw_seed() if body.seed is None else body.seed,
        key=caller.key_id,
        salt=caller.salt,
        priority=priority_in_force(caller.asked_priority, caller.key, None),
        privacy=privacy_in_force(caller.asked_privacy, floor),
        policy=caller.policy,
        deadline_s=caller.deadline_s(body.timeout),
    )


def begin_chain(deps: ApiDependencies, record: RequestRecord, chain: Chain) -> Chain:
    """Start and attach in one turn, so that whoever ends the request closes the chain."""
    record.model = chain.model_name
    chain.start()
    deps.requests.attach(record, chain)
    return chain


async def whole_answer(chain: Chain) -> dict[str, Any]:
    """The outputs of a chain as one body."""
    async for _ in chain.pieces():
        continue
    return {
        "id": chain.asked.id,
        "object": "edgewise.pipeline",
        "pipeline": chain.pipeline.spec.name,
        "output": {name: show_output(chain, name) for name in chain.pipeline.output},
        **_told(chain),
    }


def show_output(chain: Chain, name: str) -> dict[str, Any]:
    """What one stage has made: its text, or its pictures in the order of parts."""
    output = chain.output(name)
    if output.media:
        return {"pictures": [{"b64_json": _encoded(picture)} for picture in output.media]}
    return {"text": output.text}


def _told(chain: Chain) -> dict[str, Any]:
    usage = chain.usage()
    return {
        "usage": {
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "total_tokens": usage.prompt_tokens + usage.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": usage.cached_tokens or 0},
        },
        "edgewise": chain.receipt(),
    }


def _events(chain: Chain, context: RequestContext, *, keepalive_s: float) -> AsyncGenerator[bytes, None]:
    """A stream's events; a fault becomes an error event, after which nothing comes."""
    return with_faults(_told_events(chain, keepalive_s), context, lambda error: (sse(error_body(error)),))


async def _told_events(chain: Chain, keepalive_s: float) -> AsyncGenerator[bytes, None]:
    while not chain.done:
        news = await chain.receive(keepalive_s)
        if news is not None:
            yield sse(_chunk(chain, news))
        elif not chain.done:
            yield KEEP_ALIVE
    yield sse({"id": chain.asked.id, "object": "edgewise.pipeline.done", **_told(chain)})
    yield DONE


def _chunk(chain: Chain, news: ChainPiece) -> Mapping[str, Any]:
    """`offset` and `count` are characters of text or steps of a picture, by part."""
    piece = news.piece
    shown: dict[str, Any] = {
        "id": chain.asked.id,
        "object": "edgewise.pipeline.chunk",
        "stage": news.stage,
        "part": news.part,
        "offset": piece.offset,
        "count": piece.count,
        "finish": piece.finish,
    }
    if news.draft:
        shown["draft"] = True
    if piece.total is not None:
        shown["total"] = piece.total
    if piece.text:
        shown["text"] = piece.text
    for name, media in (("preview", piece.preview), ("picture", piece.picture)):
        if media is not None:
            shown[name] = {"b64_json": _encoded(media)}
    return shown


def _encoded(media: bytes) -> str:
    return base64.b64encode(media).decode()
