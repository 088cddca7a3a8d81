"""POST /v1/messages and /v1/messages/count_tokens."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from edgewise.api.deps import ApiDependencies
from edgewise.api.generate import Prepared, admit, answer, caller, read_body
from edgewise.api.messages_api.parse import messages_task
from edgewise.api.messages_api.schemas import CountBody, MessagesBody
from edgewise.api.messages_api.writer import MessagesWriter
from edgewise.api.openapi import request_body
from edgewise.api.parse import Caller
from edgewise.api.responses import json_response
from edgewise.api.schemas import validate
from edgewise.core.errors import InvalidRequest
from edgewise.pipeline.prompt import encode_input

MESSAGES = "/v1/messages"
COUNT = "/v1/messages/count_tokens"
OLDEST_VERSION, LATEST_VERSION = "2023-06-01", "2026-10-21"
"""Values of the header `anthropic-version` whose form of answers this is; it may be left out."""
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", re.ASCII)


def messages_router(deps: ApiDependencies) -> APIRouter:
    router = APIRouter(tags=["Anthropic"])

    @router.post(MESSAGES, openapi_extra=request_body(MessagesBody))
    async def create_message(request: Request) -> Response:
        ignored, warnings = _read_headers(request)

        async def prepare(deps: ApiDependencies, body: dict[str, Any], caller: Caller) -> Prepared:
            checked = validate(MessagesBody, body)
            model = await deps.models.open(checked.model, keep_alive_s=checked.keep_alive)
            task, form = messages_task(checked, model, caller)
            task = replace(task, ignored=(*task.ignored, *ignored), warnings=(*task.warnings, *warnings))
            return Prepared(task=task, form=form, write=lambda run, _: MessagesWriter(run))

        return await answer(request, deps, MESSAGES, prepare)

    @router.post(COUNT, openapi_extra=request_body(CountBody))
    async def count_tokens(request: Request) -> Response:
        _read_headers(request)
        context = admit(request, deps, COUNT)
        body = validate(CountBody, await read_body(request, deps))
        task, _ = messages_task(
            body, await deps.models.open(body.model, keep_alive_s=body.keep_alive), caller(context, deps)
        )
        encoded = await encode_input(await deps.requests.until_cut(deps.media.gather(task)))
        return json_response({"input_tokens": sum(len(prompt) for prompt in encoded.prompts)})

    return router


def _read_headers(request: Request) -> tuple[list[str], list[str]]:
    """Names of headers that have no effect, and warnings."""
    version = request.headers.get("anthropic-version", LATEST_VERSION)
    if not _DATE.fullmatch(version) or version < OLDEST_VERSION:
        raise InvalidRequest(
            f"The header 'anthropic-version' is '{version[:40]}': it must be a date from {OLDEST_VERSION} on.",
            param="anthropic-version",
        )
    ignored = ["anthropic-beta"] if request.headers.get("anthropic-beta") else []
    if version <= LATEST_VERSION:
        return ignored, []
    return ignored, [f"The version {version} is not known here: the answer has the form of {LATEST_VERSION}."]
