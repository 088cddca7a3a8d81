"""/edgewise/v1/receipts and /edgewise/v1/plan: what was decided and what came of it, and what would be decided."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, get_args

from fastapi import APIRouter, Request
from fastapi.responses import Response

from edgewise.api.context import context_of
from edgewise.api.deps import ApiDependencies
from edgewise.api.generate import Prepare, caller, read_body
from edgewise.api.images.routes import prepare as prepare_pictures
from edgewise.api.images.schemas import ImageBody
from edgewise.api.parse import Caller
from edgewise.api.pipelines.routes import plan_pipeline
from edgewise.api.privacy import asked_policy, asked_privacy
from edgewise.api.responses import json_response
from edgewise.api.responses_api.routes import prepare_response
from edgewise.api.routes_v1 import prepare_chat, prepare_completion
from edgewise.api.schemas import validate
from edgewise.core.errors import InvalidRequest, UnknownField
from edgewise.pipeline.pictures import PictureTask, explain_pictures
from edgewise.pipeline.plan import Place
from edgewise.pipeline.receipt_store import MAX_FOUND, Query
from edgewise.pipeline.receipts import show_plan
from edgewise.pipeline.run import explain
from edgewise.pipeline.task import Task

RECEIPTS = "/edgewise/v1/receipts"
PLAN = "/edgewise/v1/plan"
_BY_FIELD: Mapping[str, Prepare] = {
    "messages": prepare_chat,
    "input": prepare_response,
    "prompt": prepare_completion,
}
PLACES: tuple[Place, ...] = get_args(Place)
_PARAMETERS = frozenset({"request", "model", "where", "key", "since", "until", "limit"})


def receipts_router(deps: ApiDependencies) -> APIRouter:
    router = APIRouter(tags=["Service"])

    @router.get(RECEIPTS)
    async def find_receipts(request: Request) -> Response:
        """The latest first; `since` and `until` are seconds since the Unix epoch, or seconds before now where negative."""
        query = _read_query(request.query_params, deps.clock.time())
        found = await deps.receipts.find(query)
        return json_response({"object": "list", "data": found, "has_more": len(found) == query.limit})

    @router.get(RECEIPTS + "/{request_id:path}")
    async def show_receipt(request_id: str) -> Response:
        return json_response(await deps.receipts.get(request_id))

    @router.post(PLAN)
    async def plan_request(request: Request) -> Response:
        """Where a request would run and why, with every candidate; the body is what the text routes, /v1/images/generations
        or, with `pipeline` and its name besides, /edgewise/v1/pipelines take. Nothing is run."""
        context = context_of(request.scope)
        context.privacy = asked_privacy(request.headers)
        context.policy = asked_policy(request.headers)
        body = await read_body(request, deps)
        return json_response(await deps.requests.until_cut(_explain(deps, body, caller(context, deps))))

    return router


async def _explain(deps: ApiDependencies, body: dict[str, Any], asker: Caller) -> dict[str, Any]:
    if "pipeline" in body:
        return await plan_pipeline(deps, body, asker)
    task: Task | PictureTask
    if await _draws(deps, body):
        task = (await prepare_pictures(deps, validate(ImageBody, body), asker, "generation")).task
        plan = await explain_pictures(task, deps.planner)
    else:
        task = await deps.media.gather((await _prepare_of(body)(deps, body, asker)).task)
        plan = await explain(task, deps.planner)
    return {
        "model": task.model.name,
        "privacy": task.privacy.label,
        "priority": task.priority.label,
        **show_plan(plan),
    }


async def _draws(deps: ApiDependencies, body: Mapping[str, Any]) -> bool:
    """Whether a body asks a picture model; a text completion's has the same fields, and is meant where a name stands for both."""
    asked = body.get("model")
    roles = {card.role for card in await deps.models.cards() if asked in (card.name, *card.aliases)}
    return roles == {"diffusion"}


def _prepare_of(body: Mapping[str, Any]) -> Prepare:
    """The route is known by the field that only its bodies have."""
    for name, prepare in _BY_FIELD.items():
        if name in body:
            return prepare
    raise InvalidRequest(
        "The body is none that a text route takes: it has no 'messages' (chat), 'input' (responses) or 'prompt' (completions).",
        param="messages",
    )


def _read_query(given: Mapping[str, str], now: float) -> Query:
    for name in given:
        if name not in _PARAMETERS:
            raise UnknownField(f"Unknown parameter '{name[:80]}': remove it.", param=name[:80])
    limit = given.get("limit", "100")
    if not (limit.isascii() and limit.isdecimal() and len(limit) < 7 and 1 <= int(limit) <= MAX_FOUND):
        raise InvalidRequest(f"'limit' is '{limit[:20]}': it must be from 1 to {MAX_FOUND}.", param="limit")
    where = given.get("where")
    if where is not None and where not in PLACES:
        raise InvalidRequest(f"'where' is '{where[:20]}': choose from {', '.join(PLACES)}.", param="where")
    return Query(
        request=given.get("request"),
        model=given.get("model"),
        where=where,
        key=given.get("key"),
        since=_moment(given, "since", now),
        until=_moment(given, "until", now),
        limit=int(limit),
    )


def _moment(given: Mapping[str, str], name: str, now: float) -> float | None:
    text = given.get(name)
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise InvalidRequest(f"'{name}' is '{text[:40]}': it must be a number of seconds.", param=name)
    return now + value if value < 0 else value
