"""What callers of the fleet's REST API share: its paths, and what its refusals mean."""

from __future__ import annotations

from typing import Any

from edgewise.core.errors import (
    EdgewiseError,
    InvalidRequest,
    LinkLost,
    NotAuthenticated,
    NotFound,
    NotPermitted,
    error_class,
)

PREFIX = "/fleet/v1"
ENROL, ENROL_STATUS = f"{PREFIX}/enrol", f"{PREFIX}/enrol/status"
CHALLENGE, RENEW = f"{PREFIX}/enrol/challenge", f"{PREFIX}/enrol/renew"
_BY_STATUS: dict[int, type[EdgewiseError]] = {401: NotAuthenticated, 403: NotPermitted, 404: NotFound}


def told_error(body: Any, status: int, retry_after: str | None = None) -> EdgewiseError:
    """The error in an answer that is no success; `body` is its JSON, or None where there is none (a proxy's page)."""
    told = body.get("error") if isinstance(body, dict) else None
    told = told if isinstance(told, dict) else {}
    code, message, param = told.get("code"), told.get("message"), told.get("param")
    kind = error_class(code) if isinstance(code, str) else None
    if kind is None or kind is EdgewiseError:
        kind = _BY_STATUS.get(status, LinkLost if status >= 500 else InvalidRequest)
    text = message if isinstance(message, str) else f"The fleet service answered with status {status}."
    seconds = float(retry_after) if retry_after is not None and retry_after.isdecimal() else None
    return kind(text, param=param if isinstance(param, str) else None, retry_after_s=seconds)
