"""Users, API tokens and the audit log."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from fastapi import APIRouter
from fastapi.responses import Response, StreamingResponse

from edgewise.api.responses import dumps
from edgewise.cloud.fleet import views
from edgewise.cloud.fleet.actor import Actor
from edgewise.cloud.fleet.api.auth import Caller
from edgewise.cloud.fleet.api.bodies import AuditCheck, TokenAdd, UserAdd, UserChange
from edgewise.cloud.fleet.api.routes_devices import After, Limit
from edgewise.cloud.fleet.api.state import Services
from edgewise.cloud.fleet.services import Audit

router = APIRouter()
_EXPORT_PAGE = 1000


@router.get("/users", tags=["people"])
async def users(actor: Caller, fleet: Services) -> Sequence[views.UserView]:
    return await fleet.people.users(actor)


@router.post("/users", status_code=201, tags=["people"])
async def add_user(body: UserAdd, actor: Caller, fleet: Services) -> views.UserView:
    return await fleet.people.add_user(actor, body.name, body.password, body.role)


@router.patch("/users/{name}", tags=["people"])
async def change_user(name: str, body: UserChange, actor: Caller, fleet: Services) -> views.UserView:
    """What is not given stays. A new password, or `disabled`, ends the user's logins."""
    return await fleet.people.change_user(actor, name, role=body.role, password=body.password, disabled=body.disabled)


@router.get("/tokens", tags=["people"])
async def tokens(actor: Caller, fleet: Services) -> Sequence[views.TokenView]:
    return await fleet.people.tokens(actor)


@router.post("/tokens", status_code=201, tags=["people"])
async def add_token(body: TokenAdd, actor: Caller, fleet: Services) -> views.TokenView:
    """A token for a program, shown this once."""
    return await fleet.people.add_token(actor, body.name, body.role, body.ttl_s)


@router.delete("/tokens/{token_id}", status_code=204, tags=["people"])
async def revoke_token(token_id: str, actor: Caller, fleet: Services) -> None:
    """It ends at once."""
    await fleet.people.revoke_token(actor, token_id)


@router.get("/audit", tags=["audit"])
async def entries(
    actor: Caller, fleet: Services, target: str | None = None, limit: Limit = 100, after: After = None
) -> views.Page[views.AuditView]:
    """What everybody did, the latest first; to one thing with `target`."""
    return await fleet.audit.entries(actor, target=target, limit=limit, after=after)


@router.get("/audit/verify", tags=["audit"])
async def verify(actor: Caller, fleet: Services) -> AuditCheck:
    """Whether a line was changed, removed or put between others."""
    return AuditCheck(problem=await fleet.audit.verify(actor))


@router.get(
    "/audit/export",
    tags=["audit"],
    response_class=Response,
    responses={200: {"content": {"application/x-ndjson": {}}}},
)
async def export(actor: Caller, fleet: Services) -> Response:
    """All of it, one JSON object a line."""
    first = await fleet.audit.entries(actor, limit=_EXPORT_PAGE)  # a refusal before the first byte
    return StreamingResponse(_lines(fleet.audit, actor, first), media_type="application/x-ndjson")


async def _lines(audit: Audit, actor: Actor, page: views.Page[views.AuditView]) -> AsyncIterator[bytes]:
    while True:
        for entry in page.items:
            yield dumps(entry.model_dump(mode="json")) + b"\n"
        if page.after is None:
            return
        page = await audit.entries(actor, limit=_EXPORT_PAGE, after=page.after)
