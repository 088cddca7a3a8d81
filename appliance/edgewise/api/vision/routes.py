"""POST /edgewise/v1/vision/classify and /edgewise/v1/vision/ocr: what the models of this device see in a picture."""

from __future__ import annotations

from typing import Any, Final

from fastapi import APIRouter, Request
from fastapi.responses import Response

from edgewise.api.context import RequestContext
from edgewise.api.deps import ApiDependencies
from edgewise.api.generate import admit, caller, read_body
from edgewise.api.openapi import request_body
from edgewise.api.responses import json_response
from edgewise.api.schemas import validate
from edgewise.api.sse import attended
from edgewise.api.vision.schemas import LabelBody, LookBody, ReadBody
from edgewise.models.manifest import Role
from edgewise.pipeline.vision import Look, LookTask, look

CLASSIFY: Final = "/edgewise/v1/vision/classify"
OCR: Final = "/edgewise/v1/vision/ocr"


def vision_router(deps: ApiDependencies) -> APIRouter:
    router = APIRouter(tags=["Vision"])

    @router.post(CLASSIFY, openapi_extra=request_body(LabelBody))
    async def classify(request: Request) -> Response:
        """The likeliest labels of a picture."""
        context = admit(request, deps, CLASSIFY)
        body = validate(LabelBody, await read_body(request, deps))
        options = {} if body.top is None else {"top": body.top}
        found = await attended(request.receive, deps.requests.until_cut(_look(deps, context, "vision", body, options)))
        return json_response({"object": "edgewise.labels", "model": found.receipt["model"], **_shown(found)})

    @router.post(OCR, openapi_extra=request_body(ReadBody))
    async def ocr(request: Request) -> Response:
        """The text in a picture, line by line."""
        context = admit(request, deps, OCR)
        body = validate(ReadBody, await read_body(request, deps))
        found = await attended(request.receive, deps.requests.until_cut(_look(deps, context, "ocr", body, {})))
        text = "\n".join(line["text"] for line in found.seen["lines"])
        return json_response(
            {"object": "edgewise.text", "model": found.receipt["model"], "text": text, **_shown(found)}
        )

    return router


async def _look(
    deps: ApiDependencies, context: RequestContext, role: Role, body: LookBody, options: dict[str, Any]
) -> Look:
    """Raises `EdgewiseError`, naming the field."""
    asking = caller(context, deps)
    model = await deps.models.open_encoder(role, body.model, keep_alive_s=body.keep_alive)
    context.facts["model"] = model.name
    assert context.record is not None
    context.record.model = model.name
    picture = await deps.media.read_url(body.image, "image")
    with deps.media.held.hold() as hold:
        hold.add(len(picture), "image")
        return await look(
            LookTask(
                id=asking.request_id,
                model=model,
                picture=picture,
                options=options if body.frame is None else {**options, "frame": body.frame},
                key=asking.key_id,
                priority=asking.priority(model),
                deadline_s=asking.deadline_s(body.timeout),
                privacy=asking.privacy(model),
            )
        )


def _shown(found: Look) -> dict[str, Any]:
    return {**found.seen, "edgewise": found.receipt}
