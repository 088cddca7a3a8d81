"""Read a file that is sent as multipart/form-data (RFC 7578), within its limits, without holding it in memory."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import BinaryIO

from starlette.datastructures import UploadFile
from starlette.requests import Request

from edgewise.api.errors import MissingField, WrongType
from edgewise.api.multipart import demand_multipart, parsed, too_large
from edgewise.core.errors import UnknownField

_FIELDS = frozenset({"file", "purpose", "expires_after[anchor]", "expires_after[seconds]"})
_SETTING = "files.max_bytes"


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
        silence_s: As in `api.multipart.parsed`.

    Raises:
        PayloadTooLarge, BodyTimeoutError, InvalidRequest: Said while the form arrives.
        StorageError: The disk for temporary files is full.
    """
    demand_multipart(request, "the file")
    async with parsed(
        request,
        main="file",
        max_bytes=max_bytes,
        silence_s=silence_s,
        setting=_SETTING,
        buffered="an upload",
        max_files=1,
        max_fields=8,
        max_field_bytes=1024,
    ) as form:
        unknown = sorted(form.keys() - _FIELDS)
        if unknown:
            raise UnknownField(f"Unknown field '{unknown[0][:80]}': remove it.", param=unknown[0][:80])
        file = form.get("file")
        if file is None:
            raise MissingField("The field 'file' is required.", param="file")
        if not isinstance(file, UploadFile):
            raise WrongType("'file' must be a file with a name.", param="file")
        if (file.size or 0) > max_bytes:
            raise too_large(max_bytes, _SETTING, "file")
        fields = {name: value for name, value in form.items() if isinstance(value, str)}
        name = (file.filename or "upload.jsonl").encode("utf-8", "replace").decode()[:255]
        yield Upload(file.file, name, fields)
