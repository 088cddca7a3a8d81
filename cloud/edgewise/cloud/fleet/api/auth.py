"""Who calls: an API token or a login as bearer, or the cookie of a login, which needs the CSRF token to change anything.

No address is trusted, loopback included: every route but those of enrolment needs a caller.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import replace
from typing import Annotated

from fastapi import Depends, Request, Response, Security
from fastapi.security import APIKeyCookie, HTTPBearer

from edgewise.api.auth import bearer_token
from edgewise.cloud.fleet.actor import Actor
from edgewise.cloud.fleet.api.state import state_of
from edgewise.cloud.fleet.people.secret_tokens import is_session
from edgewise.cloud.fleet.services import People
from edgewise.core.errors import NotAuthenticated, NotPermitted
from edgewise.core.settings_fleet import FleetSettings

COOKIE = "edgewise_session"
CSRF_HEADER = "x-csrf-token"
CLI_AGENT = "edgewise-cli/"
_SAFE = ("GET", "HEAD", "OPTIONS")
_NOBODY = "Log in, or send 'Authorization: Bearer TOKEN': `edgewise fleet login`, or `edgewise fleet tokens new` for a program."

DESCRIBED = (
    Security(HTTPBearer(auto_error=False, description="An API token, or a login's token.")),
    Security(APIKeyCookie(name=COOKIE, auto_error=False, description="A login; see the header X-CSRF-Token.")),
)
"""For the OpenAPI document only."""


async def caller(request: Request) -> Actor:
    """Who calls.

    Raises:
        NotAuthenticated: Nobody, or the token or login is unknown or over.
        NotPermitted: The cookie came without its CSRF token: another page may have sent it.
    """
    people = state_of(request).fleet.people
    bearer = bearer_token(request.headers)
    if bearer:
        return _told(request, await actor_of(people, bearer))
    session = session_of(request)
    if session is None:
        raise NotAuthenticated(_NOBODY)
    actor = _told(request, await people.of_session(session))
    if request.method not in _SAFE and not _has_csrf(request, session):
        raise NotPermitted(f"A login by cookie needs the header {CSRF_HEADER} with the token that the login answered.")
    return actor


Caller = Annotated[Actor, Depends(caller)]


async def actor_of(people: People, token: str) -> Actor | None:
    """Whose token of either kind this is."""
    return await (people.of_session(token) if is_session(token) else people.of_token(token))


async def still_there(request: Request) -> bool:
    """Whether the caller of a stream that has been open for a while may still see it."""
    people = state_of(request).fleet.people
    token = bearer_token(request.headers) or session_of(request)
    return token is not None and await actor_of(people, token) is not None


def address_of(request: Request) -> str:
    return "" if request.client is None else request.client.host


def session_of(request: Request) -> str | None:
    """The login's token in the cookie."""
    return request.cookies.get(host_cookie(request, COOKIE)) or None


def csrf_token(session: str) -> str:
    """What a page of ours sends beside the cookie: it can be made of the login's token only, which no other page can read."""
    return hmac.new(session.encode(), b"edgewise csrf", hashlib.sha256).hexdigest()


def set_session_cookie(request: Request, response: Response, session: str, settings: FleetSettings) -> None:
    """Keep a login in the browser: no script reads it, and no other site's request but a plain visit carries it."""
    response.set_cookie(
        host_cookie(request, COOKIE),
        session,
        max_age=int(settings.session_s),
        path="/",
        secure=is_https(request),
        httponly=True,
        samesite="lax",
    )


def drop_session_cookie(request: Request, response: Response) -> None:
    response.delete_cookie(
        host_cookie(request, COOKIE), path="/", secure=is_https(request), httponly=True, samesite="lax"
    )


def host_cookie(request: Request, name: str) -> str:
    """Browsers keep a `__Host-` cookie from being set by anybody but this host, over TLS."""
    return f"__Host-{name}" if is_https(request) else name


def is_https(request: Request) -> bool:
    public = state_of(request).settings.public_url
    return request.url.scheme == "https" or (public is not None and public.startswith("https:"))


def _has_csrf(request: Request, session: str) -> bool:
    return hmac.compare_digest(request.headers.get(CSRF_HEADER, "").encode(), csrf_token(session).encode())


def _told(request: Request, actor: Actor | None) -> Actor:
    if actor is None:
        raise NotAuthenticated(f"The token or login is unknown or over. {_NOBODY}")
    kind = "cli" if request.headers.get("user-agent", "").startswith(CLI_AGENT) else "api"
    return replace(actor, via=f"{kind} {address_of(request)}"[:40])
