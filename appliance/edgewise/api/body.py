"""Read a JSON body: within the size limit while it arrives, within a time limit, and as JSON means it (RFC 8259)."""

from __future__ import annotations

import json
import math
import re
from typing import Any, NoReturn

from starlette.requests import ClientDisconnect, Request

from edgewise.api.errors import BadJson, BodyTimeoutError, NotJson
from edgewise.core.errors import Cancelled, PayloadTooLarge
from edgewise.core.patience import within

MAX_DEPTH = 64
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


async def read_json(
    request: Request, *, max_bytes: int, timeout_s: float, setting: str | None = None
) -> dict[str, Any]:
    """The body as an object; `setting` names what `max_bytes` is set by, if it can be.

    Raises:
        NotJson: 415, the content type is another.
        PayloadTooLarge: 413, announced or read more than `max_bytes`; the rest is not read.
        BodyTimeoutError: 408.
        BadJson: 400; the message says where.
    """
    _check_content_type(request)
    return parse_json(await read_bytes(request, max_bytes=max_bytes, timeout_s=timeout_s, setting=setting))


async def read_bytes(request: Request, *, max_bytes: int, timeout_s: float, setting: str | None = None) -> bytes:
    """The body of any type, within the limits of `read_json`."""
    late = BodyTimeoutError(f"The body did not arrive within {timeout_s:g} s: send less of it, or over a faster link.")
    try:
        return await within(_read(request, max_bytes, setting), timeout_s, lambda: late)
    except ClientDisconnect as error:
        raise Cancelled("The client left while its body was being read.") from error


def _check_content_type(request: Request) -> None:
    value = request.headers.get("content-type", "")
    media_type = value.split(";", 1)[0].strip().lower()
    if media_type != "application/json":
        shown = media_type[:80] or "missing"
        raise NotJson(f"The content type is {shown}: send the body as application/json.")


async def _read(request: Request, max_bytes: int, setting: str | None) -> bytes:
    bound, remedy = ("", "") if setting is None else (f"{setting}: ", ", or raise the setting")
    too_large = PayloadTooLarge(
        f"The body is larger than this service accepts ({bound}{max_bytes} bytes): send less{remedy}."
    )
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced[:20]) > max_bytes:
        raise too_large
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > max_bytes:
            raise too_large
        parts.append(part)
    return b"".join(parts)


def parse_json(raw: bytes) -> dict[str, Any]:
    """Raises `BadJson` for malformed text, NaN and infinities, lone surrogates, depth over 64, or anything but an object."""
    try:
        value = json.loads(raw.decode("utf-8"), parse_constant=_refuse_constant, parse_float=_finite)
    except UnicodeDecodeError as error:
        raise BadJson(f"The body is not UTF-8 (byte {error.start}).") from error
    except json.JSONDecodeError as error:
        raise BadJson(f"The body is not JSON: {error.msg} (line {error.lineno}, column {error.colno}).") from error
    except RecursionError as error:
        raise BadJson(f"The body is nested deeper than {MAX_DEPTH} levels.") from error
    except ValueError as error:  # an integer with thousands of digits
        raise BadJson("The body holds a number with too many digits.") from error
    if not isinstance(value, dict):
        raise BadJson("The body must be a JSON object.")
    _check_depth(value)
    if _SURROGATE.search(raw):
        _check_characters(value)
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise BadJson(f"The body holds {name}, which is no JSON number.")


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise BadJson(f"The body holds the number {text[:40]}, which is too large.")
    return value


def _check_depth(value: dict[str, Any]) -> None:
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH):
        level = [
            child
            for container in level
            for child in (container.values() if isinstance(container, dict) else container)
            if isinstance(child, (dict, list))
        ]
        if not level:
            return
    raise BadJson(f"The body is nested deeper than {MAX_DEPTH} levels.")


def _check_characters(value: dict[str, Any]) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError as error:
        raise BadJson("The body holds half of a surrogate pair (\\ud800 to \\udfff), which is no character.") from error
