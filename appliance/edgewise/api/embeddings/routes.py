"""POST /v1/embeddings and POST /v1/rerank."""

from __future__ import annotations

import asyncio
import base64
from array import array
from collections.abc import Coroutine
from typing import Any, TypeVar

from fastapi import APIRouter, Request
from fastapi.responses import Response

from edgewise.api.context import RequestContext
from edgewise.api.deps import ApiDependencies
from edgewise.api.embeddings.schemas import EmbeddingsBody, RerankBody, check_count
from edgewise.api.generate import admit, caller, read_body
from edgewise.api.openapi import request_body
from edgewise.api.responses import json_response
from edgewise.api.schemas import validate
from edgewise.api.sse import attended
from edgewise.core.errors import UnsupportedField
from edgewise.models.manifest import Role
from edgewise.pipeline.embeddings import Embedded, EmbedTask, Text, embed, shortened
from edgewise.pipeline.encoder_receipts import of_encoder
from edgewise.pipeline.model import ServedEncoder
from edgewise.pipeline.rerank import rerank

T = TypeVar("T")

EMBEDDINGS = "/v1/embeddings"
RERANK = "/v1/rerank"


def embeddings_router(deps: ApiDependencies) -> APIRouter:
    router = APIRouter(tags=["OpenAI"])

    @router.post(EMBEDDINGS, openapi_extra=request_body(EmbeddingsBody))
    async def embeddings(request: Request) -> Response:
        context = admit(request, deps, EMBEDDINGS)
        body = validate(EmbeddingsBody, await read_body(request, deps))
        check_count(len(body.input))
        model = await deps.models.open_encoder("embeddings", body.model, keep_alive_s=body.keep_alive)
        task = _task(deps, context, body, model, body.input, "input")
        _check_dimensions(task.model, body.dimensions)
        found = await _computed(request, deps, context, task, embed(task, deps.hooks, clock=deps.clock.monotonic))
        data = await asyncio.to_thread(_data, found, body.encoding_format == "base64", body.dimensions)
        usage = {"prompt_tokens": found.tokens, "total_tokens": found.tokens}
        answer = {"object": "list", "data": data, "model": task.model.name, "usage": usage}
        return json_response(answer | {"edgewise": _facts(task, found)})

    @router.post(RERANK, openapi_extra=request_body(RerankBody))
    async def rerank_documents(request: Request) -> Response:
        context = admit(request, deps, RERANK)
        body = validate(RerankBody, await read_body(request, deps))
        texts = body.texts
        model = await _ranker(deps, body)
        task = _task(deps, context, body, model, (body.query, *texts), "documents")
        ranked = await _computed(request, deps, context, task, rerank(task, deps.hooks, clock=deps.clock.monotonic))
        results: list[dict[str, Any]] = []
        for index, score in ranked.order[: body.top_n]:
            shown = {"document": {"text": texts[index]}} if body.return_documents else {}
            results.append({"index": index, "relevance_score": round(score, 6), **shown})
        found = ranked.found
        usage = {"prompt_tokens": found.tokens, "total_tokens": found.tokens}
        answer = {"id": context.id, "model": task.model.name, "results": results, "usage": usage}
        return json_response(answer | {"edgewise": _facts(task, found) | {"scored_by": ranked.scored_by}})

    return router


async def _ranker(deps: ApiDependencies, body: RerankBody) -> ServedEncoder:
    """The model that is named; else a cross-encoder, and where there is none, an encoder whose vectors are compared."""
    known = {name for card in await deps.models.cards() if card.role == "rerank" for name in (card.name, *card.aliases)}
    role: Role = "rerank" if known and body.model in (None, *known) else "embeddings"
    return await deps.models.open_encoder(role, body.model, keep_alive_s=body.keep_alive)


def _task(
    deps: ApiDependencies,
    context: RequestContext,
    body: EmbeddingsBody | RerankBody,
    model: ServedEncoder,
    texts: tuple[Text, ...],
    field: str,
) -> EmbedTask:
    """A validated body as a task. Raises `EdgewiseError`, naming the field."""
    asking = caller(context, deps)
    return EmbedTask(
        id=asking.request_id,
        model=model,
        texts=texts,
        field=field,
        truncate=bool(body.truncate),
        key=asking.key_id,
        priority=asking.priority(model),
        deadline_s=asking.deadline_s(body.timeout),
    )


async def _computed(
    request: Request, deps: ApiDependencies, context: RequestContext, task: EmbedTask, work: Coroutine[Any, Any, T]
) -> T:
    """Computed while the client is there and the service may go on."""
    record = context.record
    assert record is not None
    record.model = context.facts["model"] = task.model.name
    if deps.log_content:
        context.facts["prompts"] = [text for text in task.texts if isinstance(text, str)]
    return await attended(request.receive, deps.requests.until_cut(work))


def _check_dimensions(model: ServedEncoder, asked: int | None) -> None:
    """A vector may be cut only where the model was trained for that."""
    if asked is None or model.face is None or asked == model.face.shape.width:
        return
    width, cuts = model.face.shape.width, model.face.shape.cuts
    if (asked < width) if cuts is None else (asked in cuts):
        return
    allowed = "and was not trained to be cut" if cuts == () else "which may be cut to "
    if cuts != ():
        allowed += "any length below" if cuts is None else " or ".join(map(str, cuts))
    raise UnsupportedField(
        f"'dimensions' is {asked}: '{model.name}' gives vectors of {width} numbers, {allowed}.", param="dimensions"
    )


def _data(found: Embedded, packed: bool, dimensions: int | None) -> list[dict[str, Any]]:
    form = _packed if packed else _numbers
    vectors = found.vectors if dimensions is None else [shortened(it, dimensions) for it in found.vectors]
    return [{"object": "embedding", "index": at, "embedding": form(it)} for at, it in enumerate(vectors)]


def _numbers(vector: array[float]) -> list[float]:
    """Nine digits say a float32 exactly."""
    return [float(f"{value:.9g}") for value in vector]


def _packed(vector: array[float]) -> str:
    """float32, little-endian, as OpenAI's clients read it."""
    return base64.b64encode(vector.tobytes()).decode("ascii")


def _facts(task: EmbedTask, found: Embedded) -> dict[str, Any]:
    """What a device's user wants to know; texts never leave the device for this."""
    encoders = of_encoder(task.model, found.device_s, rung=found.precision, inputs=len(found.vectors))
    return {
        "id": task.id,
        "digest": task.model.digest,
        "place": "local",
        "precision": found.precision,
        "truncated": list(found.truncated),
        "took_s": round(found.took_s, 6),
        "compute_s": round(found.compute_s, 6),
        "encoders": [one.to_dict() for one in encoders],
    }
