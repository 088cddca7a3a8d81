"""Log in at the OpenID provider: a browser is sent there, and comes back with a code."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import RedirectResponse

from edgewise.cloud.fleet.api.auth import address_of, host_cookie, is_https, set_session_cookie
from edgewise.cloud.fleet.api.middleware import PREFIX
from edgewise.cloud.fleet.api.state import Services, state_of
from edgewise.cloud.fleet.people.openid import OpenId
from edgewise.core.errors import NotAuthenticated, NotFound

router = APIRouter(tags=["login"])
COOKIE = "edgewise_openid"
_MINUTES = 10
Text = Annotated[str, Query(max_length=4096)]


@router.get("/openid/login", status_code=303, response_class=Response)
async def begin(request: Request) -> Response:
    """Send the browser to the provider; 404 where none is configured."""
    begun = await _openid(request).begin(_return_address(request))
    response = RedirectResponse(begun.url, status_code=303)
    response.set_cookie(
        host_cookie(request, COOKIE),
        begun.cookie,
        max_age=60 * _MINUTES,
        path="/",
        secure=is_https(request),
        httponly=True,
        samesite="lax",
    )
    return response


@router.get("/openid/callback", status_code=303, response_class=Response)
async def finish(
    request: Request, fleet: Services, state: Text = "", code: Text = "", error: Text = "", error_description: Text = ""
) -> Response:
    """The browser comes back: it gets the cookie of a login, and the console."""
    openid = _openid(request)
    if error:
        raise NotAuthenticated(f"The OpenID provider refuses this login: {error_description or error}.")
    cookie = request.cookies.get(host_cookie(request, COOKIE))
    who = await openid.finish(_return_address(request), cookie, state, code)
    token = await fleet.people.login_at_provider(who.subject, who.email, address_of(request))
    response = RedirectResponse("/", status_code=303)
    set_session_cookie(request, response, token, state_of(request).settings)
    response.delete_cookie(host_cookie(request, COOKIE), path="/", secure=is_https(request), httponly=True)
    return response


def _openid(request: Request) -> OpenId:
    openid = state_of(request).openid
    if openid is None:
        raise NotFound("No OpenID provider is configured here: log in with name and password.")
    return openid


def _return_address(request: Request) -> str:
    """The same in both halves: the provider compares it with what was registered there."""
    base = state_of(request).settings.public_url or str(request.base_url)
    return f"{base.rstrip('/')}{PREFIX}/openid/callback"
