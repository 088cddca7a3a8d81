"""Pure ASGI middlewares: the request's context with its log line and metrics, and CORS."""

from __future__ import annotations

import uuid

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from edgewise.api.context import RequestContext, store_context
from edgewise.api.deps import ApiDependencies
from edgewise.api.errors import error_response, internal_error
from edgewise.core.log import get_logger

log = get_logger(__name__)
QUIET_PATHS = frozenset({"/healthz", "/readyz", "/metrics"})
CLIENT_LEFT = 499
SWITCHED = 101
_ALLOWED_HEADERS = (
    "authorization, x-api-key, content-type, last-event-id, anthropic-version, anthropic-beta, x-edgewise-priority, "
    "x-edgewise-privacy, x-edgewise-policy, x-edgewise-receipt"
)
_EXPOSED_HEADERS = "x-request-id, retry-after, x-edgewise-receipt, x-edgewise-model, x-edgewise-voice"
"""Of answers, what a page may read: a browser keeps all others from it."""


class ContextMiddleware:
    """Outermost: names the request, turns a fault of ours into an error body, releases what the request holds, logs one line."""

    def __init__(self, app: ASGIApp, *, deps: ApiDependencies) -> None:
        self._app = app
        self._deps = deps

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        context = RequestContext(id=f"req_{uuid.uuid4().hex}", started=self._deps.clock.monotonic())
        store_context(scope, context)
        status: int | None = None

        async def send_named(message: Message) -> None:
            nonlocal status
            if message["type"] in ("http.response.start", "websocket.http.response.start", "websocket.accept"):
                status = message.get("status", SWITCHED)
                MutableHeaders(scope=message)["x-request-id"] = context.id
            await send(message)

        try:
            await self._app(scope, receive, send_named)
        except Exception as error:  # outermost frame of a request; a client must get an answer
            log.exception("request_broke", request_id=context.id, path=scope["path"][:200])
            context.error = "internal_error"
            if status is not None:
                raise  # too late for an error body: the server closes the connection
            await error_response(internal_error(error), scope)(scope, receive, send_named)
        finally:
            await self._finish(scope, context, CLIENT_LEFT if status is None else status)

    async def _finish(self, scope: Scope, context: RequestContext, status: int) -> None:
        seconds = self._deps.clock.monotonic() - context.started
        record = context.record
        if record is not None:
            record.error = context.error
            if record.run is not None:
                usage = record.run.usage()
                self._deps.metrics.answered(record.run.model_name, usage, seconds)
                context.facts["prompt_tokens"] = usage.prompt_tokens
                context.facts["completion_tokens"] = usage.completion_tokens
            await self._deps.requests.end(record, status=status)
        route = getattr(scope.get("route"), "path", "other")
        method = scope.get("method", "GET") if route != "other" else "other"
        self._deps.metrics.requests.labels(route, method, str(status)).inc()
        write = log.debug if scope["path"] in QUIET_PATHS else log.info
        write(
            "request",
            request_id=context.id,
            method=scope.get("method", "GET"),
            path=scope["path"][:200],
            status=status,
            ms=round(seconds * 1000, 1),
            key=None if context.key is None else context.key.name,
            error=context.error,
            **context.facts,
        )


class CorsMiddleware:
    """Lets the listed web origins call; for all others a browser sees no CORS header and refuses by itself.

    A preflight of a listed origin is answered here, since browsers send it without a key.
    """

    def __init__(self, app: ASGIApp, *, origins: tuple[str, ...]) -> None:
        self._app = app
        self._origins = frozenset(origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        origin = Headers(scope=scope).get("origin") if scope["type"] == "http" else None
        if origin is None or origin not in self._origins:
            await self._app(scope, receive, send)
            return
        if scope["method"] == "OPTIONS" and "access-control-request-method" in Headers(scope=scope):
            headers = {
                "access-control-allow-origin": origin,
                "access-control-allow-methods": "GET, POST, DELETE",
                "access-control-allow-headers": _ALLOWED_HEADERS,
                "access-control-max-age": "600",
                "vary": "Origin",
            }
            await Response(status_code=204, headers=headers)(scope, receive, send)
            return

        async def send_allowed(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers["access-control-allow-origin"] = origin
                headers["access-control-expose-headers"] = _EXPOSED_HEADERS
                headers.add_vary_header("Origin")
            await send(message)

        await self._app(scope, receive, send_allowed)
