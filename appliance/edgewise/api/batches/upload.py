"""Read a file that is sent as multipart/form-data (RFC 7578), within its limits, without holding it in memory."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect, Request

from edgewise.api.errors import BodyTimeoutError, MissingField, NotJson, WrongType
from edgewise.core.errors import Cancelled, InvalidRequest, PayloadTooLarge, UnknownField
from edgewise.core.files import translate_os_errors

_FIELDS = frozenset({"file", "purpose", "expires_after[anchor]", "expires_after[seconds]"})
_MAX_OVERHEAD = 64 * 1024
"""Bytes of a form beside its file."""
_LEAST_RATE = 1024
"""Bytes a second, on average, after the first silence: what bounds the silences alone bounds no sender."""


@dataclass(frozen=True, slots=True)
class Upload:
    """Attributes:
    file: Open as long as the form is.
    """

    file: BinaryIO
    filename: str
    fields: dict[str, str]


@asynccontextmanager
async def read_upload(request: Request, *, max_bytes: int, silence_s: float) -> AsyncGenerator[Upload, None]:
    """The form of POST /v1/files.

    Args:
        silence_s: A sender that sends nothing for so long is given up, and so is one that keeps behind `_LEAST_RATE` by more.

    Raises:
        PayloadTooLarge, BodyTimeoutError, InvalidRequest: Said while the form arrives.
        StorageError: The disk for temporary files is full.
    """
    media_type = request.headers.get("content-type", "").split(";", 1)[0].strip().lower()
    if media_type != "multipart/form-data":
        shown = media_type[:80] or "missing"
        raise NotJson(f"The content type is {shown}: send the file as multipart/form-data.")
    parts = within(request, max_bytes, silence_s)
    parser = MultiPartParser(request.headers, parts, max_files=1, max_fields=8, max_part_size=1024)
    try:
        with translate_os_errors("buffer an upload in", Path("the folder for temporary files")):
            form = await parser.parse()
    except MultiPartException as error:
        raise InvalidRequest(f"The form cannot be read: {error.message}", param="file") from error
    except KeyError as error:  # no boundary in the content type
        raise InvalidRequest("The form's content type names no boundary.", param="file") from error
    try:
        unknown = sorted(form.keys() - _FIELDS)
        if unknown:
            raise UnknownField(f"Unknown field '{unknown[0][:80]}': remove it.", param=unknown[0][:80])
        file = form.get("file")
        if file is None:
            raise MissingField("The field 'file' is required.", param="file")
        if not isinstance(file, UploadFile):
            raise WrongType("'file' must be a file with a name.", param="file")
        if (file.size or 0) > max_bytes:
            raise _too_large(max_bytes)
        fields = {name: value for name, value in form.items() if isinstance(value, str)}
        name = (file.filename or "upload.jsonl").encode("utf-8", "replace").decode()[:255]
        yield Upload(file.file, name, fields)
    finally:
        await form.close()


def _too_large(max_bytes: int, setting: str = "files.max_bytes") -> PayloadTooLarge:
    return PayloadTooLarge(f"The file is larger than this service accepts ({setting}: {max_bytes}).")


async def within(
    request: Request,
    max_bytes: int,
    silence_s: float,
    setting: str = "files.max_bytes",
    *,
    clock: Callable[[], float] = time.monotonic,
) -> AsyncGenerator[bytes, None]:
    """The body of a form in parts; `setting` names its limit. Raises as `read_upload`."""
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced[:20]) > max_bytes + _MAX_OVERHEAD:
        raise _too_large(max_bytes, setting)
    size = 0
    stream = request.stream()
    started = clock()
    while True:
        left = started + silence_s + size / _LEAST_RATE - clock()
        try:
            part = await asyncio.wait_for(anext(stream, None), max(0.0, min(silence_s, left)))
        except asyncio.TimeoutError as error:
            if left < silence_s and size:
                raise BodyTimeoutError(
                    f"The file arrives too slowly: after {silence_s:g} s, {_LEAST_RATE} bytes a second are the least."
                ) from error
            raise BodyTimeoutError(f"Nothing of the file arrived for {silence_s:g} s.") from error
        except ClientDisconnect as error:
            raise Cancelled("The client left while its file was being read.") from error
        if part is None:
            return
        size += len(part)
        if size > max_bytes + _MAX_OVERHEAD:
            raise _too_large(max_bytes, setting)
        yield part
