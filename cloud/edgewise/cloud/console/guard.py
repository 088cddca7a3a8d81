"""Stands before every page, file and socket of the console: a valid session, our own origin, and the security headers.

The policy for pages allows scripts from this service and those with the page's nonce. It has to allow `'unsafe-eval'`: NiceGUI
compiles its Vue templates and event handlers in the browser; and inline styles, which Vue and Quasar set on elements. Nothing
from another origin loads or is called.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from urllib.parse import parse_qs, quote

import nicegui
from nicegui import Client
from nicegui import app as gui
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from edgewise.cloud.console.sessions import Console
from edgewise.cloud.fleet.api.auth import session_of

ACTOR, SESSION = "edgewise.actor", "edgewise.session"
"""Keys of the scope: the actor of this request and its session's token."""
_SOCKET = "/_nicegui_ws"
_FILES = f"/_nicegui/{nicegui.__version__}/"  # their names change with what is in them
_FIXED = {
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=(), payment=(), usb=()",
}


def page_policy(nonce: str) -> str:
    """Content-Security-Policy of a page of NiceGUI."""
    return (
        f"default-src 'none'; script-src 'self' 'nonce-{nonce}' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; "
        "img-src 'self' data:; font-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    )


LOGIN_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'"
)


def add_fixed(headers: MutableHeaders) -> None:
    """The headers that are the same for every answer of the console; the service's own middleware adds its others."""
    for name, value in _FIXED.items():
        headers.setdefault(name, value)


class Guard:
    """ASGI middleware of NiceGUI's application; `console` gives the console that is mounted, None before that."""

    def __init__(self, app: ASGIApp, console: Callable[[], Console | None]) -> None:
        self._app = app
        self._console = console

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        console = self._console()
        if scope["type"] not in ("http", "websocket") or console is None:
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        token = session_of(_as_request(scope))
        actor = await console.actor_of(token)
        socket = scope["path"].startswith(_SOCKET)
        if socket and not (actor and token and _own_socket(console, scope, headers, token)):
            await _refuse_socket(scope, receive, send)
        elif actor is None:
            await _to_login(scope, headers)(scope, receive, send)
        else:
            scope[ACTOR], scope[SESSION] = actor, token
            await self._app(scope, receive, send if scope["type"] == "websocket" else _Answer(scope, send).send)


def _as_request(scope: Scope) -> Request:
    """A socket's opening carries cookies as any request does."""
    scheme = {"ws": "http", "wss": "https"}.get(scope["scheme"], scope["scheme"])
    return Request({**scope, "type": "http", "scheme": scheme, "method": scope.get("method", "GET"), "app": gui})


def _own_socket(console: Console, scope: Scope, headers: Headers, token: str) -> bool:
    """A socket belongs to the session that was given the page: knowing a page's id is not enough."""
    if not console.same_origin(headers, needed=scope["type"] == "websocket"):
        return False
    ids = parse_qs(scope.get("query_string", b"").decode("latin-1")).get("client_id", [])
    client = Client.instances.get(ids[0]) if ids else None
    return client is None or client.request.scope.get(SESSION) == token


async def _refuse_socket(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 4403})
    else:
        await PlainTextResponse("Log in first.", status_code=403)(scope, receive, send)


def _to_login(scope: Scope, headers: Headers) -> ASGIApp:
    if scope["method"] in ("GET", "HEAD") and "text/html" in headers.get("accept", ""):
        path = scope["path"] + (f"?{query}" if (query := scope["query_string"].decode("latin-1")) else "")
        return RedirectResponse("/login" if path == "/" else f"/login?next={quote(path, safe='')}", status_code=303)
    return PlainTextResponse("Log in first.", status_code=401)


class _Answer:
    """Adds the headers to an answer; to a page also the nonce of its own scripts.

    Whatever people or devices wrote is escaped in a page of NiceGUI ("<" never appears in it), so each "<script" that is there
    is the template's.
    """

    def __init__(self, scope: Scope, send: Send) -> None:
        self._lasting = scope["path"].startswith(_FILES)
        self._send = send
        self._start: Message | None = None
        self._parts: list[bytes] = []

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(raw=message["headers"])
            add_fixed(headers)
            if headers.get("x-nicegui-content") == "page":
                self._start = message
                return
            headers.setdefault("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
            if self._lasting and message["status"] == 200:
                headers["Cache-Control"] = "private, max-age=31536000, immutable"
        elif self._start is not None and message["type"] == "http.response.body":
            self._parts.append(message.get("body", b""))
            if not message.get("more_body"):
                await self._send_page(self._start)
            return
        await self._send(message)

    async def _send_page(self, start: Message) -> None:
        nonce = secrets.token_urlsafe(16)
        body = b"".join(self._parts).replace(b"<script", f'<script nonce="{nonce}"'.encode())
        headers = MutableHeaders(raw=start["headers"])
        headers["Content-Security-Policy"] = page_policy(nonce)
        headers["Content-Length"] = str(len(body))
        await self._send(start)
        await self._send({"type": "http.response.body", "body": body})
