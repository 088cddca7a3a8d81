"""Errors in Anthropic's form: `{"type": "error", "error": {"type", "message"}, "request_id"}`, for routes below /v1/messages."""

from __future__ import annotations

from typing import Any

from edgewise.core.errors import EdgewiseError

PREFIX = "/v1/messages"
_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    421: "permission_error",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    507: "api_error",
}


def speaks_anthropic(path: str) -> bool:
    return path == PREFIX or path.startswith(f"{PREFIX}/")


def messages_error(error: EdgewiseError, request_id: str | None = None) -> dict[str, Any]:
    """`param` and `code` are ours: the field's name and the stable word that docs/api.md lists."""
    kind = _TYPES.get(error.http_status, "api_error" if error.http_status >= 500 else "invalid_request_error")
    told = {"type": kind, "message": error.message, "param": error.param, "code": error.code}
    return {"type": "error", "error": told, "request_id": request_id}
