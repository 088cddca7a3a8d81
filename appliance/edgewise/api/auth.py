"""Who may call what, decided before a byte of the body is read.

A caller that came in on an address other than loopback, or through a proxy, gets nothing but health without a valid key. On
loopback no key is needed unless the configuration says so, but then the Host header must name this machine, so that a web page
cannot reach the service by pointing its own name at 127.0.0.1 (DNS rebinding), and a page of another origin that is not listed
may not make it do anything: browsers send forms across origins without asking. A wrong key is refused everywhere.
"""

from __future__ import annotations

from collections.abc import Set

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from edgewise.api.context import RequestContext, context_of
from edgewise.api.deps import Access, KeyRecord, KeyVerifier
from edgewise.api.errors import HostRefused, OriginRefused, refuse
from edgewise.core.addresses import is_loopback
from edgewise.core.errors import EdgewiseError, NotAuthenticated, NotPermitted

OPEN_PATHS = frozenset({"/healthz", "/readyz"})
NO_KEYS = frozenset({"", "unused", "none", "empty"})
"""What stands for no key, in any case: the clients of other servers insist on sending something."""
KEY_SUBPROTOCOL = "openai-insecure-api-key."
PROXY_HEADERS = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip")
_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
"""What only reads (RFC 9110); of these answers a page of another origin sees nothing without CORS."""
_SCOPES = (
    ("/v1", "inference"),
    ("/edgewise/v1/jobs", "inference"),
    ("/edgewise/v1/blobs", "inference"),
    ("/edgewise/v1/cloud", "inference"),
    ("/edgewise/v1/pipelines", "inference"),
    ("/edgewise/v1/vision", "inference"),
    ("/edgewise/v1/kv", "inference"),
    ("/edgewise", "admin"),
    ("/metrics", "metrics"),
)
"""Scope that a path needs; the first that covers it counts."""


class AuthMiddleware:
    """Pure ASGI; puts the key's record into the request's context."""

    def __init__(self, app: ASGIApp, *, keys: KeyVerifier | None, access: Access) -> None:
        self._app = app
        self._keys = keys
        self._require_key = access.require_key
        self._origins = frozenset(access.allowed_origins)
        self._hosts = frozenset(_host_name(host) for host in access.allowed_hosts) | {"localhost"}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in ("http", "websocket") and scope["path"] not in OPEN_PATHS:
            context = context_of(scope)
            try:
                self._admit(scope, context)
            except EdgewiseError as error:
                context.error = error.code
                await refuse(error, scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _admit(self, scope: Scope, context: RequestContext) -> None:
        headers = Headers(scope=scope)
        token = bearer_token(headers)
        if scope["type"] == "websocket":
            self._check_origin(headers)
            token = token or _token_of_browser(scope)
        if token:
            context.key = self._verify(token)
            check_scope(context.key.scopes, scope["path"])
            return
        if self._require_key or not arrived_on_loopback(scope) or any(name in headers for name in PROXY_HEADERS):
            raise NotAuthenticated(
                "An API key is needed: send 'Authorization: Bearer KEY'. `edgewise keys new` makes one on the device."
            )
        self._check_host(headers)
        if scope["type"] == "http" and scope["method"] not in _SAFE_METHODS:
            self._check_origin(headers, own=headers.get("host", ""))

    def _verify(self, token: str) -> KeyRecord:
        record = self._keys.verify(token) if self._keys is not None else None
        if record is None:
            raise NotAuthenticated(
                "The API key is not valid (unknown, expired or revoked). `edgewise keys list` on the device shows all; "
                "a caller on the device itself may send 'unused' unless a key is required."
            )
        return record

    def _check_origin(self, headers: Headers, *, own: str = "") -> None:
        """Browsers let every page open a WebSocket or send a form to anywhere and say which page it is; CORS does not hold there.

        A page of the host `own` passes as well.
        """
        origin = headers.get("origin")
        if origin is None or origin in self._origins or (own and origin.lower().partition("://")[2] == own.lower()):
            return
        raise OriginRefused(
            f"A page of '{origin[:100]}' may not call this service: list its origin in security.allowed_origins."
        )

    def _check_host(self, headers: Headers) -> None:
        host = headers.get("host", "")
        name = _host_name(host)
        if host and name not in self._hosts and not is_loopback(name):
            raise HostRefused(
                f"The host name '{host[:100]}' is not this machine's: call localhost, send a key, or list the name in "
                "security.allowed_hosts."
            )


def bearer_token(headers: Headers) -> str | None:
    """The key that was sent; None for no Authorization header, an empty one, or a word that stands for no key.

    Without an Authorization header that of Anthropic's clients, `x-api-key`, is read.
    """
    value = headers.get("authorization")
    if value is None:
        token = headers.get("x-api-key", "").strip()
        return None if token.lower() in NO_KEYS else token
    scheme, _, token = value.strip().partition(" ")
    if scheme.lower() != "bearer":
        raise NotAuthenticated(f"The Authorization scheme '{scheme[:40]}' is not known: send 'Bearer KEY'.")
    token = token.strip()
    return None if token.lower() in NO_KEYS else token


def _token_of_browser(scope: Scope) -> str | None:
    """The key among the subprotocols of a WebSocket, where OpenAI's clients in browsers put it: they cannot send headers."""
    for name in scope.get("subprotocols", ()):
        if name.startswith(KEY_SUBPROTOCOL):
            token = name.removeprefix(KEY_SUBPROTOCOL)
            return None if token.lower() in NO_KEYS else token
    return None


def check_scope(scopes: Set[str], path: str) -> None:
    """Raises `NotPermitted` unless one of the key's scopes covers the path; "admin" covers all."""
    if "admin" in scopes:
        return
    for prefix, needed in _SCOPES:
        if path == prefix or path.startswith(f"{prefix}/"):
            if needed not in scopes:
                raise NotPermitted(f"This API key does not have the scope '{needed}' that {prefix} needs.")
            return


def arrived_on_loopback(scope: Scope) -> bool:
    """Whether the connection arrived on a loopback address or a Unix socket of this machine."""
    server = scope.get("server")
    if not server:
        return False
    host, port = server
    return (port is None and host.startswith("/")) or is_loopback(host)


def _host_name(host: str) -> str:
    """The name in a Host header: without port, brackets and trailing dot, in lower case."""
    host = host.strip().lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    name = host.rpartition(":")[0] if host.count(":") == 1 else host
    return name.rstrip(".")
