"""Log in and out, and who one is."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from edgewise.cloud.fleet.api.auth import (
    DESCRIBED,
    Caller,
    address_of,
    csrf_token,
    drop_session_cookie,
    session_of,
    set_session_cookie,
)
from edgewise.cloud.fleet.api.bodies import Login, PasswordChange, Who
from edgewise.cloud.fleet.api.state import Services, state_of
from edgewise.core.errors import NotAuthenticated

router = APIRouter(tags=["login"])


@router.post("/login")
async def login(body: Login, request: Request, response: Response, fleet: Services) -> Who:
    """Log in with name and password; 429 after too many wrong ones."""
    token = await fleet.people.login(body.name, body.password, address_of(request))
    actor = await fleet.people.of_session(token)
    if actor is None:
        raise NotAuthenticated("The account was disabled meanwhile.")
    who = Who(tenant=actor.tenant, name=actor.name, role=actor.role)
    if not body.cookie:
        return who.model_copy(update={"token": token})
    set_session_cookie(request, response, token, state_of(request).settings)
    return who.model_copy(update={"csrf": csrf_token(token)})


@router.post("/logout", status_code=204, dependencies=DESCRIBED)
async def logout(request: Request, response: Response, actor: Caller, fleet: Services) -> None:  # noqa: ARG001
    """End this login; an API token stays what it is."""
    session = session_of(request) or request.headers.get("authorization", "").partition(" ")[2].strip()
    await fleet.people.logout(session)
    drop_session_cookie(request, response)


@router.get("/whoami", dependencies=DESCRIBED)
async def whoami(request: Request, actor: Caller) -> Who:
    """The caller, with the CSRF token of a login by cookie."""
    session = session_of(request)
    csrf = None if session is None else csrf_token(session)
    return Who(tenant=actor.tenant, name=actor.name, role=actor.role, csrf=csrf)


@router.put("/whoami/password", status_code=204, dependencies=DESCRIBED)
async def change_password(body: PasswordChange, actor: Caller, fleet: Services) -> None:
    """A new password of the caller; all of their logins end, this one too."""
    await fleet.people.change_password(actor, body.old, body.new)
