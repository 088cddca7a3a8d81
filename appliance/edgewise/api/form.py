"""Read a form with files (multipart/form-data, RFC 7578) within its limits."""

from __future__ import annotations

import json
from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from typing import Any, Final

from starlette.datastructures import FormData, UploadFile
from starlette.requests import Request

from edgewise.api.errors import MissingField, WrongType
from edgewise.api.multipart import demand_multipart, parsed, too_large
from edgewise.core.errors import InvalidRequest, UnsupportedField

_MAX_FIELDS: Final = 40
_MAX_FIELD_BYTES: Final = 256 * 1024
_LIST: Final = "[]"


@dataclass(frozen=True, slots=True, kw_only=True)
class FormShape:
    """What a route's form has.

    Attributes:
        main: The file that must be there.
        what: What is sent, in the words of a message: "the pictures".
        files: All files by name; a name may be followed by "[]".
        known: Fields whose values are no text: they are read as JSON where they can be.
        texts: Fields that stay as they are.
        lists: Fields that may be there several times.
        one_each: Why a name is not taken twice, where there is more to say than that.
    """

    main: str
    what: str
    files: Set[str]
    known: Set[str]
    texts: Set[str]
    lists: Set[str] = frozenset()
    one_each: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Form:
    """Attributes:
    fields: As a JSON body would have them.
    files: As they were sent, by name.
    """

    fields: Mapping[str, Any]
    files: Mapping[str, bytes]


async def read_form(
    request: Request, shape: FormShape, *, max_bytes: int, silence_s: float, setting: str = "limits.max_body_bytes"
) -> Form:
    """The form of a request; `setting` names the limit.

    Raises:
        NotJson: 415, another content type.
        PayloadTooLarge, BodyTimeoutError: Said while it arrives.
        InvalidRequest: A field is missing, twice there or of the wrong kind.
        StorageError: The disk for temporary files is full.
    """
    demand_multipart(request, shape.what, shape.main)
    async with parsed(
        request,
        main=shape.main,
        max_bytes=max_bytes,
        silence_s=silence_s,
        setting=setting,
        buffered="a form",
        max_files=len(shape.files) + 1,
        max_fields=_MAX_FIELDS,
        max_field_bytes=_MAX_FIELD_BYTES,
    ) as form:
        found = await _read(form, shape, max_bytes, setting)
    if shape.main not in found.files:
        raise MissingField(f"The field '{shape.main}' is required.", param=shape.main)
    return found


async def _read(form: FormData, shape: FormShape, max_bytes: int, setting: str) -> Form:
    files: dict[str, bytes] = {}
    fields: dict[str, Any] = {}
    for name, value in form.multi_items():
        plain = name.removesuffix(_LIST)
        if plain in shape.lists:
            fields.setdefault(plain, []).append(_plain(name, value))
            continue
        if plain in files or name in fields:
            why = shape.one_each.get(plain, "send it once")
            raise UnsupportedField(f"'{plain[:80]}' is there twice: {why}.", param=plain[:80])
        if plain in shape.files:
            files[plain] = await _file(plain, value, max_bytes, setting)
        else:
            fields[name] = _value(shape, name, _plain(name, value))
    return Form(fields, files)


def _plain(name: str, value: UploadFile | str) -> str:
    if isinstance(value, UploadFile):
        raise WrongType(f"'{name[:80]}' must be a plain field, not a file.", param=name[:80])
    return value


async def _file(name: str, value: UploadFile | str, max_bytes: int, setting: str) -> bytes:
    if not isinstance(value, UploadFile):
        raise WrongType(f"'{name}' must be a file.", param=name)
    data = await value.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise too_large(max_bytes, setting, name)
    if not data:
        raise InvalidRequest(f"'{name}' is empty: send the whole file.", param=name)
    return data


def _value(shape: FormShape, name: str, text: str) -> Any:
    """A form knows texts only: numbers and truth values are read as JSON where the field is one."""
    if name in shape.texts or name not in shape.known:
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):  # no JSON, or nested without end: the schema says what is wanted
        return text
