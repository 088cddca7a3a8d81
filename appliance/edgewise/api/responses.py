"""JSON for bodies and events."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
_LINE_BREAKS = {0x85: "\\u0085", 0x2028: "\\u2028", 0x2029: "\\u2029"}


def dumps(value: Any) -> bytes:
    """Compact UTF-8 JSON, never NaN. Characters that some clients take for line ends are escaped: an event stays one line."""
    text = _ENCODER.encode(value)
    return text.encode("ascii") if text.isascii() else text.translate(_LINE_BREAKS).encode("utf-8")


def json_response(value: Any, status: int = 200, *, headers: Mapping[str, str] | None = None) -> Response:
    """`value` as a whole body."""
    return Response(dumps(value), status_code=status, headers=headers, media_type="application/json")
