"""Around every request of the fleet service: its name and log line, security headers, and a body that is read within limits."""

from __future__ import annotations

import time
import uuid

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from edgewise.api.body import read_json
from edgewise.api.context import RequestContext, store_context
from edgewise.api.errors import error_response, internal_error
from edgewise.api.responses import dumps
from edgewise.core.errors import EdgewiseError
from edgewise.core.log import get_logger

log = get_logger(__name__)

PREFIX = "/fleet/v1"
MAX_BODY = 2 * 1024**2
_BODY_S = 30.0
_API_HEADERS = {
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "referrer-policy": "no-referrer",
}
# The console's framework compiles its templates in the browser, which needs 'unsafe-eval'; nothing is loaded from elsewhere.
_PAGE_HEADERS = {
    "content-security-policy": "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; "
    "style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; font-src 'self' data:; connect-src 'self' ws: wss:; "
    "frame-ancestors 'none'; base-uri 'self'; form-action 'self'; object-src 'none'",
    "referrer-policy": "same-origin",
}
_COMMON_HEADERS = {"x-content-type-options": "nosniff", "x-frame-options": "DENY"}
_TLS_HEADERS = {"strict-transport-security": "max-age=31536000"}


class FleetMiddleware:
    """Outermost, pure ASGI. A route may set a security header of its own, which then stays."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        context = RequestContext(id=f"req_{uuid.uuid4().hex}", started=time.monotonic())
        store_context(scope, context)
        status: int | None = None

        async def send_named(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                _add_headers(scope, message, context.id)
            await send(message)

        try:
            await self._serve(scope, receive, send_named)
        except EdgewiseError as error:
            context.error = error.code
            await error_response(error, scope)(scope, receive, send_named)
        except Exception as error:  # outermost frame of a request; a client must get an answer
            log.exception("request_broke", request_id=context.id, path=scope["path"][:200])
            if status is not None:
                raise  # too late for an error body: the server closes the connection
            await error_response(internal_error(error), scope)(scope, receive, send_named)
        finally:
            if in_api(scope["path"]):
                _log(scope, context, status)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        if in_api(scope["path"]) and _has_body(scope):
            receive = await _read_ahead(scope, receive)
        await self._app(scope, receive, send)


def in_api(path: str) -> bool:
    return path == PREFIX or path.startswith(f"{PREFIX}/")


async def _read_ahead(scope: Scope, receive: Receive) -> Receive:
    """A `receive` that has the whole body at once, as JSON means it: no NaN, no lone surrogates, no endless depth."""
    value = await read_json(Request(scope, receive), max_bytes=MAX_BODY, timeout_s=_BODY_S)
    body: bytes | None = dumps(value)
    scope["headers"] = [(name, text) for name, text in scope["headers"] if name != b"content-length"]

    async def replay() -> Message:
        nonlocal body
        if body is None:
            return await receive()
        message, body = {"type": "http.request", "body": body, "more_body": False}, None
        return message

    return replay


def _has_body(scope: Scope) -> bool:
    headers = dict(scope["headers"])
    return b"transfer-encoding" in headers or headers.get(b"content-length", b"0") != b"0"


def _add_headers(scope: Scope, message: Message, id: str) -> None:
    headers = MutableHeaders(scope=message)
    headers["x-request-id"] = id
    own = _API_HEADERS if in_api(scope["path"]) else _PAGE_HEADERS
    tls = _TLS_HEADERS if scope.get("scheme") == "https" else {}
    for name, value in {**own, **_COMMON_HEADERS, **tls}.items():
        headers.setdefault(name, value)


def _log(scope: Scope, context: RequestContext, status: int | None) -> None:
    log.info(
        "request",
        request_id=context.id,
        method=scope["method"],
        path=scope["path"][:200],
        status=499 if status is None else status,
        ms=round((time.monotonic() - context.started) * 1000, 1),
        error=context.error,
    )
