"""OpenAI's routes: /v1/models, /v1/chat/completions, /v1/completions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from edgewise.api.deps import ApiDependencies
from edgewise.api.generate import Prepared, answer
from edgewise.api.openapi import request_body
from edgewise.api.parse import Caller, chat_task, completion_task
from edgewise.api.responses import json_response
from edgewise.api.schemas import ChatBody, CompletionBody, validate
from edgewise.api.shapes import ChatShape, CompletionShape
from edgewise.api.spoken import SpokenShape, SpokenWriter, voice_of
from edgewise.api.writers import ChoicesWriter
from edgewise.pipeline.model import ModelCard, unknown_model

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"


def v1_router(deps: ApiDependencies) -> APIRouter:
    router = APIRouter(tags=["OpenAI"])

    @router.get("/v1/models")
    async def list_models() -> Response:
        return json_response({"object": "list", "data": [_model(card) for card in await deps.models.cards()]})

    @router.get("/v1/models/{model_id:path}")
    async def show_model(model_id: str) -> Response:
        cards = await deps.models.cards()
        card = next((card for card in cards if model_id in (card.name, *card.aliases)), None)
        if card is None:
            raise unknown_model(model_id, [card.name for card in cards])
        return json_response(_model(card))

    @router.post(CHAT, openapi_extra=request_body(ChatBody))
    async def chat_completions(request: Request) -> Response:
        return await answer(request, deps, CHAT, prepare_chat)

    @router.post(COMPLETIONS, openapi_extra=request_body(CompletionBody))
    async def completions(request: Request) -> Response:
        return await answer(request, deps, COMPLETIONS, prepare_completion)

    return router


async def prepare_chat(deps: ApiDependencies, body: dict[str, Any], caller: Caller) -> Prepared:
    checked = validate(ChatBody, body)
    voice, format = voice_of(checked)
    model = await deps.models.open(checked.model, keep_alive_s=checked.keep_alive)
    task, form = chat_task(checked, model, caller)
    if voice is not None and format is not None:
        return Prepared(
            task=replace(task, voice=voice),
            form=form,
            write=lambda run, created: SpokenWriter(deps, run, SpokenShape(run, form, created), form, format),
        )
    return Prepared(
        task=task, form=form, write=lambda run, created: ChoicesWriter(run, ChatShape(run, form, created), form)
    )


async def prepare_completion(deps: ApiDependencies, body: dict[str, Any], caller: Caller) -> Prepared:
    checked = validate(CompletionBody, body)
    task, form = completion_task(
        checked, await deps.models.open(checked.model, keep_alive_s=checked.keep_alive), caller
    )
    return Prepared(
        task=task, form=form, write=lambda run, created: ChoicesWriter(run, CompletionShape(run, form, created), form)
    )


def _model(model: ModelCard) -> dict[str, Any]:
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
            "chat": model.chat,
            "loaded": model.loaded,
            "where": model.where,
            "media": list(model.media),
        },
    }
