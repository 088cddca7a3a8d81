"""Blobs over HTTP: whole or in parts, both ways."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator

from fastapi import APIRouter, Request
from fastapi.responses import Response
from starlette.requests import ClientDisconnect
from starlette.responses import FileResponse

from edgewise.api.errors import BodyTimeoutError
from edgewise.api.responses import json_response
from edgewise.cloud.blobs import BlobStore
from edgewise.cloud.intake.routes import tenant_of
from edgewise.core.errors import Cancelled, InvalidRequest, NotFound
from edgewise.core.patience import within
from edgewise.wire.http import BLOBS

_HASH = r"^[0-9a-f]{64}$"
_RANGE = re.compile(r"bytes ([0-9]{1,15})-([0-9]{1,15})/([0-9]{1,15})")
_PIECE = 256 * 1024


def blobs_router(blobs: BlobStore, *, silence_s: float) -> APIRouter:
    """`silence_s`: an upload that brings nothing for so long is given up; it can be resumed."""
    router = APIRouter(tags=["Cloud"])
    path = BLOBS + "/{sha256}"

    @router.put(path)
    async def put(request: Request, sha256: str) -> Response:
        """Take a blob: 201, or 200 if it was here; 202 while parts are missing, with `upload-offset` where to go on."""
        tenant = tenant_of(request)
        start, total = _content_range(request)
        media = request.headers.get("content-type", "application/octet-stream")[:100]
        had = await _is_here(blobs, tenant, _checked(sha256))
        content = _pieces(request, silence_s)
        blob = await blobs.write(tenant, sha256, content, start=start, total=total, media=media)
        if blob is None:
            return json_response({"sha256": sha256}, 202, headers=_offset(blobs.received(tenant, sha256)))
        return json_response(blob.model_dump(mode="json"), 200 if had else 201)

    @router.head(path, include_in_schema=False)
    @router.get(path)
    async def get(request: Request, sha256: str) -> Response:
        """A blob, or the range of it that is asked for; of an unfinished upload HEAD says where to go on."""
        tenant = tenant_of(request)
        try:
            blob = await blobs.find(tenant, _checked(sha256))
        except NotFound:
            if request.method == "HEAD":
                return Response(status_code=404, headers=_offset(blobs.received(tenant, sha256)))
            raise
        headers = {"etag": f'"{sha256}"', "cache-control": "private, immutable"}
        path = blobs.path(tenant, sha256)
        try:
            stat = await asyncio.to_thread(path.stat)
        except FileNotFoundError:  # dropped between the two, or taken away by hand
            raise NotFound(f"There is no blob '{sha256}' here any more.", param="sha256") from None
        return FileResponse(path, media_type=blob.media, headers=headers, stat_result=stat)

    return router


def _checked(sha256: str) -> str:
    if re.fullmatch(_HASH, sha256) is None:
        raise InvalidRequest("A blob is named by its SHA-256: 64 digits from 0 to 9 and a to f.", param="sha256")
    return sha256


async def _is_here(blobs: BlobStore, tenant: str, sha256: str) -> bool:
    try:
        await blobs.find(tenant, sha256)
    except NotFound:
        return False
    return True


def _offset(received: int) -> dict[str, str]:
    return {"upload-offset": str(received)}


def _content_range(request: Request) -> tuple[int, int | None]:
    """Where the body begins in the blob, and how large the blob is; (0, its length) without Content-Range."""
    text = request.headers.get("content-range")
    length = request.headers.get("content-length", "")
    if text is None:
        return 0, int(length) if length.isdecimal() and len(length) < 16 else None
    match = _RANGE.fullmatch(text.strip())
    if match is None or not int(match[1]) <= int(match[2]) < int(match[3]):
        raise InvalidRequest(f"'Content-Range' is {text[:60]!r}: write bytes FIRST-LAST/TOTAL.", param="content-range")
    return int(match[1]), int(match[3])


async def _pieces(request: Request, silence_s: float) -> AsyncIterator[bytes]:
    """The body, collected into pieces that are worth a write."""
    stream = request.stream().__aiter__()
    held = bytearray()
    while True:
        try:
            part = await within(
                anext(stream), silence_s, lambda: BodyTimeoutError(f"Nothing came for {silence_s:g} s.")
            )
        except StopAsyncIteration:
            break
        except ClientDisconnect as error:
            if held:
                yield bytes(held)
            raise Cancelled("The client left while its blob was being read.") from error
        held += part
        if len(held) >= _PIECE:
            yield bytes(held)
            held.clear()
    if held:
        yield bytes(held)
