"""Claim codes and keys of devices, for people; and what devices call that enrol or renew, who prove themselves in the body."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from fastapi import APIRouter, Request

from edgewise.cloud.fleet import views
from edgewise.cloud.fleet.api.auth import Caller, address_of
from edgewise.cloud.fleet.api.bodies import CodeAdd
from edgewise.cloud.fleet.api.state import Services
from edgewise.wire.fleet import Challenge, Enrolled, EnrolPoll, EnrolRequest, RenewalQuestion, RenewRequest

router = APIRouter(tags=["keys"])
device_router = APIRouter(tags=["enrolment"])


@router.get("/codes")
async def codes(actor: Caller, fleet: Services) -> Sequence[views.CodeView]:
    """Claim codes that are not used up."""
    return await fleet.enrolment.codes(actor)


@router.post("/codes", status_code=201)
async def add_code(body: CodeAdd, actor: Caller, fleet: Services) -> views.CodeView:
    """A code with which devices enrol, shown this once; with `uid` it gives that device a new key."""
    return await fleet.enrolment.add_code(
        actor,
        ttl_s=body.ttl_s,
        uses=body.uses,
        auto_accept=body.auto_accept,
        labels=body.labels,
        uid=body.uid,
        cloud=body.cloud,
    )


@router.delete("/codes/{code_id}", status_code=204)
async def delete_code(code_id: str, actor: Caller, fleet: Services) -> None:
    await fleet.enrolment.delete_code(actor, code_id)


@router.get("/keys")
async def keys(
    actor: Caller, fleet: Services, uid: str | None = None, state: str | None = None
) -> Sequence[views.KeyView]:
    """Keys of devices; `state=pending` are those that wait for a decision."""
    return await fleet.enrolment.keys(actor, uid=uid, state=state)


@router.post("/keys/{key_id}/{what}")
async def decide(
    key_id: str, what: Literal["accept", "refuse", "revoke"], actor: Caller, fleet: Services
) -> views.KeyView:
    """Accept or refuse a key that waits, or revoke one in use: its device can no longer connect."""
    if what == "revoke":
        return await fleet.enrolment.revoke(actor, key_id)
    return await fleet.enrolment.decide(actor, key_id, what == "accept")


@device_router.post("/enrol")
async def enrol(body: EnrolRequest, request: Request, fleet: Services) -> Enrolled:
    """A device's first certificate, for a claim code; asking again with the same code and key gets the same answer."""
    return await fleet.enrolment.enrol(body, address_of(request))


@device_router.post("/enrol/status")
async def enrol_status(body: EnrolPoll, request: Request, fleet: Services) -> Enrolled:
    """Has an administrator decided?"""
    return await fleet.enrolment.status(body, address_of(request))


@device_router.post("/enrol/challenge")
async def challenge(body: RenewalQuestion, fleet: Services) -> Challenge:
    """When the certificate of a key must be renewed, and what to sign then."""
    return await fleet.enrolment.challenge(body)


@device_router.post("/enrol/renew")
async def renew(body: RenewRequest, request: Request, fleet: Services) -> Enrolled:
    """The next certificate of a device that proves its key; one that has expired may be renewed too."""
    return await fleet.enrolment.renew(body, address_of(request))
