"""Read the form of POST /v1/images/edits (multipart/form-data, RFC 7578) within its limits."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request

from edgewise.api.batches.upload import within
from edgewise.api.errors import MissingField, NotJson, WrongType
from edgewise.api.images.schemas import EditBody
from edgewise.core.errors import InvalidRequest, PayloadTooLarge, UnsupportedField

_TEXTS = frozenset({"prompt", "model", "size", "output_format", "negative_prompt"})
_FILES = frozenset({"image", "image[]", "mask"})
_MAX_FIELDS = 40
_MAX_FIELD_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True)
class EditForm:
    """Attributes:
    fields: As a JSON body would have them.
    image, mask: Encoded pictures as they were sent.
    """

    fields: Mapping[str, Any]
    image: bytes
    mask: bytes | None


async def read_form(request: Request, *, max_bytes: int, silence_s: float) -> EditForm:
    """The form of a request.

    Raises:
        NotJson: 415, another content type.
        PayloadTooLarge, BodyTimeoutError: Said while it arrives.
        InvalidRequest: A field is missing, twice there or of the wrong kind.
    """
    media_type = request.headers.get("content-type", "").split(";", 1)[0].strip().lower()
    if media_type != "multipart/form-data":
        raise NotJson(f"The content type is {media_type[:80] or 'missing'}: send the pictures as multipart/form-data.")
    parts = within(request, max_bytes, silence_s, "limits.max_body_bytes")
    parser = MultiPartParser(
        request.headers, parts, max_files=3, max_fields=_MAX_FIELDS, max_part_size=_MAX_FIELD_BYTES
    )
    try:
        form = await parser.parse()
    except MultiPartException as error:
        raise InvalidRequest(f"The form cannot be read: {error.message}", param="image") from error
    except KeyError as error:  # no boundary in the content type
        raise InvalidRequest("The form's content type names no boundary.", param="image") from error
    try:
        files: dict[str, bytes] = {}
        fields: dict[str, Any] = {}
        for name, value in form.multi_items():
            plain = name.removesuffix("[]")
            if plain in files or name in fields:
                one = "pictures are drawn from one picture each" if plain == "image" else "send it once"
                raise UnsupportedField(f"'{plain[:80]}' is there twice: {one}.", param=plain[:80])
            if name in _FILES:
                files[plain] = await _file(plain, value, max_bytes)
            elif isinstance(value, UploadFile):
                raise WrongType(f"'{name[:80]}' must be a plain field, not a file.", param=name[:80])
            else:
                fields[name] = _value(name, value)
    finally:
        await form.close()
    if "image" not in files:
        raise MissingField("The field 'image' is required.", param="image")
    return EditForm(fields, files["image"], files.get("mask"))


async def _file(name: str, value: UploadFile | str, max_bytes: int) -> bytes:
    if not isinstance(value, UploadFile):
        raise WrongType(f"'{name}' must be a file.", param=name)
    data = await value.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise PayloadTooLarge(f"'{name}' is larger than this service accepts ({max_bytes} bytes).")
    if not data:
        raise InvalidRequest(f"'{name}' is empty.", param=name)
    return data


def _value(name: str, text: str) -> Any:
    """A form knows texts only: numbers and truth values are read as JSON where the field is one."""
    if name in _TEXTS or name not in EditBody.model_fields:
        return text
    try:
        return json.loads(text)
    except ValueError:
        return text
