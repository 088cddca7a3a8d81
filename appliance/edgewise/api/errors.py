"""Every error as OpenAI's `{"error": {"message", "type", "param", "code"}}`, with the status that its class fixes.

Routes below /v1/messages answer in Anthropic's form instead.
"""

from __future__ import annotations

import asyncio
import math
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import Response
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

from edgewise.api.context import context_of
from edgewise.api.messages_api.errors import messages_error, speaks_anthropic
from edgewise.api.responses import json_response
from edgewise.core.errors import EdgewiseError, InvalidRequest, NotFound, NotPermitted
from edgewise.core.log import get_logger

log = get_logger(__name__)

_TYPES = {401: "authentication_error", 403: "permission_error", 421: "permission_error", 429: "rate_limit_error"}


def error_type(status: int) -> str:
    """OpenAI's `type` of an error with this HTTP status."""
    if status in _TYPES:
        return _TYPES[status]
    return "server_error" if status >= 500 else "invalid_request_error"


def error_body(error: EdgewiseError) -> dict[str, Any]:
    return {
        "error": {
            "message": error.message,
            "type": error_type(error.http_status),
            "param": error.param,
            "code": error.code,
        }
    }


def error_headers(error: EdgewiseError) -> dict[str, str]:
    """Retry-After (whole seconds, at least 1) on 429 and 503; the challenge on 401."""
    if error.http_status == 401:
        return {"www-authenticate": 'Bearer realm="edgewise"'}
    if error.http_status in (429, 503):
        return {"retry-after": str(max(1, math.ceil(error.retry_after_s or 1.0)))}
    if isinstance(error, MethodNotAllowedError):
        return {"allow": error.allow}
    return {}


def error_response(error: EdgewiseError, scope: Scope) -> Response:
    """The answer to the request of `scope`, in the form of the API that it asked."""
    messages = speaks_anthropic(scope["path"])
    body = messages_error(error, context_of(scope).id) if messages else error_body(error)
    return json_response(body, error.http_status, headers=error_headers(error))


async def refuse(error: EdgewiseError, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer the request, or the handshake of a WebSocket, with an error."""
    await error_response(error, scope)(scope, receive, send)
    if scope["type"] == "websocket":
        await asyncio.sleep(
            0
        )  # uvicorn calls a handshake unfinished if its application returns before the connection is closed


def internal_error(error: Exception) -> EdgewiseError:
    """What a caller is told about a fault of ours; the details are in the log."""
    return EdgewiseError(
        f"The service made an error ({type(error).__name__}); its log has the details under the request id."
    )


async def _on_edgewise_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, EdgewiseError)
    return _told(request, error)


def _told(request: Request, error: EdgewiseError) -> Response:
    """The answer, with a note of it for the log line."""
    context_of(request.scope).error = error.code
    return error_response(error, request.scope)


async def _on_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 404:
        route = f"{request.method} {request.url.path[:200]}"
        return _told(
            request, NoSuchRoute(f"There is no route {route}: the API is under /v1, /openapi.json lists all of it.")
        )
    if error.status_code == 405:
        allow = (error.headers or {}).get("Allow", "")
        return _told(
            request,
            MethodNotAllowedError(
                f"{request.method} is not allowed on {request.url.path[:200]}: use {allow}.", allow=allow
            ),
        )
    return _told(request, InvalidRequest(str(error.detail)))


def install_error_handlers(app: FastAPI) -> None:
    app.add_exception_handler(EdgewiseError, _on_edgewise_error)
    app.add_exception_handler(HTTPException, _on_http_exception)


class MissingField(InvalidRequest):
    """A required field is not there."""

    code = "missing_required_parameter"


class WrongType(InvalidRequest):
    """A field has another JSON type than it must have."""

    code = "invalid_type"


class BadJson(InvalidRequest):
    """The body is no JSON object, or holds what JSON or UTF-8 do not allow."""

    code = "invalid_json"


class NotJson(InvalidRequest):
    """The content type is not JSON."""

    code = "unsupported_media_type"
    http_status = 415


class BodyTimeoutError(EdgewiseError):
    """The body did not arrive in time."""

    code = "request_timeout"
    http_status = 408


class NoSuchRoute(NotFound):
    code = "unknown_url"


class MethodNotAllowedError(EdgewiseError):
    code = "method_not_allowed"
    http_status = 405

    def __init__(self, message: str, *, allow: str) -> None:
        super().__init__(message)
        self.allow = allow


class HostRefused(NotPermitted):
    """A caller without a key used a host name that is not this machine's: a web page may be behind it (DNS rebinding)."""

    code = "host_not_allowed"
    http_status = 421


class OriginRefused(NotPermitted):
    """A web page of an origin that is not listed tried to open a WebSocket, or to change something without a key."""

    code = "origin_not_allowed"
