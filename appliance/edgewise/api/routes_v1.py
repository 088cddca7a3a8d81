"""OpenAI's routes: /v1/models, /v1/chat/completions, /v1/completions."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from edgewise.api.body import read_json
from edgewise.api.deps import ApiDependencies
from edgewise.api.generate import admit, caller, generate
from edgewise.api.parse import chat_task, completion_task
from edgewise.api.responses import json_response
from edgewise.api.schemas import ChatBody, CompletionBody, validate
from edgewise.api.shapes import ChatShape, CompletionShape
from edgewise.pipeline.model import ServedModel

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"


def v1_router(deps: ApiDependencies) -> APIRouter:
    router = APIRouter(tags=["OpenAI"])

    async def read(request: Request) -> dict[str, Any]:
        limits = deps.limits
        reading = read_json(request, max_bytes=limits.max_body_bytes, timeout_s=limits.body_timeout_s)
        return await deps.requests.until_cut(reading)

    @router.get("/v1/models")
    async def list_models() -> Response:
        return json_response({"object": "list", "data": [_model(model) for model in deps.models.all()]})

    @router.get("/v1/models/{model_id:path}")
    async def show_model(model_id: str) -> Response:
        return json_response(_model(deps.models.get(model_id)))

    @router.post(CHAT, openapi_extra=_request_schema(ChatBody))
    async def chat_completions(request: Request) -> Response:
        context = admit(request, deps, CHAT)
        body = validate(ChatBody, await read(request))
        task, form = chat_task(body, await deps.models.open(body.model), caller(context, deps))
        return await generate(request, deps, task, form, ChatShape)

    @router.post(COMPLETIONS, openapi_extra=_request_schema(CompletionBody))
    async def completions(request: Request) -> Response:
        context = admit(request, deps, COMPLETIONS)
        body = validate(CompletionBody, await read(request))
        task, form = completion_task(body, await deps.models.open(body.model), caller(context, deps))
        return await generate(request, deps, task, form, CompletionShape)

    return router


def _model(model: ServedModel) -> dict[str, Any]:
    """OpenAI's model object; `edgewise` adds what a device's user wants to know."""
    return {
        "id": model.name,
        "object": "model",
        "created": model.created,
        "owned_by": model.owned_by,
        "edgewise": {
            "aliases": list(model.aliases),
            "context": model.context,
            "digest": model.digest,
            "chat": model.template is not None,
        },
    }


def _request_schema(schema: type[ChatBody] | type[CompletionBody]) -> dict[str, Any]:
    """The body is read and checked by ourselves; this tells /openapi.json what it is."""
    content = {"application/json": {"schema": schema.model_json_schema()}}
    return {"requestBody": {"required": True, "content": content}}
