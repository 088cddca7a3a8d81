"""/v1/files and /v1/batches."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path

from fastapi import APIRouter, Request
from fastapi.responses import Response
from starlette.responses import StreamingResponse

from edgewise.api.batches.schemas import (
    MAX_EXPIRY_S,
    MIN_EXPIRY_S,
    WINDOWS_S,
    BatchBody,
    show_batch,
    show_file,
)
from edgewise.api.batches.upload import read_upload
from edgewise.api.context import context_of
from edgewise.api.deps import ApiDependencies
from edgewise.api.errors import MissingField
from edgewise.api.generate import Prepare, read_body
from edgewise.api.openapi import request_body
from edgewise.api.paging import page, read_page
from edgewise.api.requests import shutting_down
from edgewise.api.responses import json_response
from edgewise.api.responses_api.parse import check_metadata
from edgewise.api.schemas import validate
from edgewise.api.unattended import unattended_priority, unattended_privacy
from edgewise.core.errors import InvalidRequest, UnsupportedField
from edgewise.pipeline.batches.files import copy_from

FILES = "/v1/files"
FILE = FILES + "/{file_id}"
BATCHES = "/v1/batches"
BATCH = BATCHES + "/{batch_id}"
_BLOCK = 256 * 1024
PURPOSES = ("batch", "vision", "user_data")
"""What files may be uploaded for: the last two for pictures and film in chats."""


def batches_router(deps: ApiDependencies, endpoints: Mapping[str, Prepare]) -> APIRouter:
    """`endpoints` are the routes that a batch may ask."""
    router = APIRouter(tags=["OpenAI"])
    _add_files(router, deps)
    _add_batches(router, deps, frozenset(endpoints))
    return router


def _add_files(router: APIRouter, deps: ApiDependencies) -> None:
    files = deps.files

    @router.post(FILES)
    async def upload_file(request: Request) -> Response:
        _refuse_while_draining(deps)
        keep = deps.keep
        async with read_upload(request, max_bytes=keep.file_bytes, silence_s=deps.limits.body_timeout_s) as upload:
            _check_purpose(upload.fields)
            expires_s = _expiry(upload.fields, keep.files_s)
            stored = await files.add(
                _owner(request),
                purpose=upload.fields["purpose"],
                filename=upload.filename,
                write=copy_from(upload.file),
                expires_s=expires_s,
            )
        return json_response(show_file(stored))

    @router.get(FILES)
    async def list_files(request: Request) -> Response:
        wanted = read_page(request.query_params, default=10_000, largest=10_000, also=frozenset({"purpose"}))
        found = await files.of_owner(_owner(request), request.query_params.get("purpose"))
        return json_response(page([show_file(file) for file in found], wanted))

    @router.get(FILE)
    async def show_one_file(request: Request, file_id: str) -> Response:
        return json_response(show_file(await files.get(_owner(request), file_id)))

    @router.get(FILE + "/content")
    async def file_content(request: Request, file_id: str) -> Response:
        file = await files.get(_owner(request), file_id)
        headers = {"content-length": str(file.bytes)}
        return StreamingResponse(_blocks(files.path(file.id)), media_type="application/octet-stream", headers=headers)

    @router.delete(FILE)
    async def delete_file(request: Request, file_id: str) -> Response:
        await files.delete(_owner(request), file_id)
        return json_response({"id": file_id, "object": "file", "deleted": True})


def _add_batches(router: APIRouter, deps: ApiDependencies, endpoints: frozenset[str]) -> None:
    batches = deps.batches

    @router.post(BATCHES, openapi_extra=request_body(BatchBody))
    async def create_batch(request: Request) -> Response:
        _refuse_while_draining(deps)
        body = validate(BatchBody, await read_body(request, deps))
        if body.endpoint not in endpoints:
            raise InvalidRequest(
                f"'endpoint' is '{body.endpoint[:80]}': it must be one of {', '.join(sorted(endpoints))}.",
                param="endpoint",
            )
        check_metadata(body.metadata or {})
        file = await deps.files.get(_owner(request), body.input_file_id, param="input_file_id")
        if file.purpose != "batch":
            raise InvalidRequest("'input_file_id' names a file of another purpose than 'batch'.", param="input_file_id")
        expiry = body.output_expires_after
        batch = await batches.create(
            _owner(request),
            endpoint=body.endpoint,
            input_file=file.id,
            window_s=WINDOWS_S[body.completion_window],
            metadata=body.metadata,
            output_expires_s=None if expiry is None else expiry.seconds,
            priority=unattended_priority(request),
            privacy=unattended_privacy(request, deps.labels),
        )
        return json_response(show_batch(batch))

    @router.get(BATCHES)
    async def list_batches(request: Request) -> Response:
        wanted = read_page(request.query_params, default=20, largest=100)
        found = await batches.of_owner(_owner(request))
        return json_response(page([show_batch(batch) for batch in found], wanted))

    @router.get(BATCH)
    async def show_one_batch(request: Request, batch_id: str) -> Response:
        return json_response(show_batch(await batches.get(_owner(request), batch_id)))

    @router.post(BATCH + "/cancel")
    async def cancel_batch(request: Request, batch_id: str) -> Response:
        return json_response(show_batch(await batches.cancel(_owner(request), batch_id)))


def _owner(request: Request) -> str:
    """Whose state a request may see: that of its key, or of callers without one."""
    return context_of(request.scope).salt


def _refuse_while_draining(deps: ApiDependencies) -> None:
    if deps.draining:
        raise shutting_down()


def _check_purpose(fields: Mapping[str, str]) -> None:
    purpose = fields.get("purpose")
    if purpose is None:
        raise MissingField("The field 'purpose' is required.", param="purpose")
    if purpose not in PURPOSES:
        raise UnsupportedField(
            f"'purpose' is '{purpose[:40]}': files are kept for {', '.join(PURPOSES)} here.", param="purpose"
        )


def _expiry(fields: Mapping[str, str], default_s: float) -> float:
    seconds = fields.get("expires_after[seconds]")
    anchor = fields.get("expires_after[anchor]")
    if seconds is None and anchor is None:
        return default_s
    if anchor != "created_at":
        raise InvalidRequest("'expires_after[anchor]' must be 'created_at'.", param="expires_after[anchor]")
    text = seconds or ""
    if not (text.isascii() and text.isdecimal() and len(text) < 10 and MIN_EXPIRY_S <= int(text) <= MAX_EXPIRY_S):
        raise InvalidRequest(
            f"'expires_after[seconds]' must be from {MIN_EXPIRY_S} to {MAX_EXPIRY_S}.", param="expires_after[seconds]"
        )
    return float(text)


async def _blocks(path: Path) -> AsyncGenerator[bytes, None]:
    with path.open("rb") as file:
        while block := await asyncio.to_thread(file.read, _BLOCK):
            yield block
