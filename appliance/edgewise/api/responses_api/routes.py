"""POST /v1/responses, and what was kept: GET, DELETE, input items, cancel."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from edgewise.api.context import context_of
from edgewise.api.deps import ApiDependencies
from edgewise.api.generate import Prepared, answer
from edgewise.api.openapi import request_body
from edgewise.api.paging import page, read_page
from edgewise.api.parse import Caller
from edgewise.api.responses import json_response
from edgewise.api.responses_api.parse import check_body, responses_task
from edgewise.api.responses_api.schemas import ResponsesBody
from edgewise.api.responses_api.writer import ResponsesWriter
from edgewise.api.schemas import validate
from edgewise.core.errors import InvalidRequest, UnsupportedField
from edgewise.pipeline.conversations import History

RESPONSES = "/v1/responses"
ONE = RESPONSES + "/{response_id}"
_NOTHING = History((), None)


def responses_router(deps: ApiDependencies) -> APIRouter:
    router = APIRouter(tags=["OpenAI"])
    kept = deps.conversations

    @router.post(RESPONSES, openapi_extra=request_body(ResponsesBody))
    async def create_response(request: Request) -> Response:
        return await answer(request, deps, RESPONSES, prepare_response)

    @router.get(ONE)
    async def show_response(request: Request, response_id: str) -> Response:
        if request.query_params.get("stream", "false").lower() != "false":
            raise UnsupportedField("'stream' is not supported here: the answer is complete.", param="stream")
        return json_response((await kept.get(owner(request), response_id)).body)

    @router.delete(ONE)
    async def delete_response(request: Request, response_id: str) -> Response:
        await kept.delete(owner(request), response_id)
        return json_response({"id": response_id, "object": "response", "deleted": True})

    @router.get(ONE + "/input_items")
    async def list_input_items(request: Request, response_id: str) -> Response:
        wanted = read_page(request.query_params, default=20, largest=100, also=frozenset({"include", "include[]"}))
        found = await kept.get(owner(request), response_id)
        return json_response(page(list(found.input), wanted))

    @router.post(ONE + "/cancel")
    async def cancel_response(request: Request, response_id: str) -> Response:
        await kept.get(owner(request), response_id)
        raise InvalidRequest(
            "Only a response in the background can be cancelled: close the connection of one that is being made.",
            param="response_id",
        )

    return router


def owner(request: Request) -> str:
    """Whose state a request may see: that of its key, or of callers without one."""
    return context_of(request.scope).salt


async def prepare_response(deps: ApiDependencies, body: dict[str, Any], caller: Caller) -> Prepared:
    checked = validate(ResponsesBody, body)
    given = check_body(checked)
    model = await deps.models.open(checked.model, keep_alive_s=checked.keep_alive)
    previous = checked.previous_response_id
    history = _NOTHING if previous is None else await deps.conversations.history(caller.salt, previous)
    task, form, asked = responses_task(checked, given, history, model, caller)
    return Prepared(
        task=task,
        form=form,
        write=lambda run, created: ResponsesWriter(run, form, asked, created, deps.conversations),
    )
