"""Devices, what they hold and report, groups, telemetry and events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from edgewise.cloud.fleet import views
from edgewise.cloud.fleet.api.auth import Caller
from edgewise.cloud.fleet.api.bodies import Desire, DeviceEdit, GroupSave, Matching
from edgewise.cloud.fleet.api.state import Services
from edgewise.cloud.fleet.api.streams import changes_of, event_stream
from edgewise.wire.fleet import Shadow

router = APIRouter()
Filter = Annotated[str, Query(max_length=2000, description="Query over devices; see docs/fleet.md. Empty: all.")]
Limit = Annotated[int, Query(ge=1, le=1000)]
After = Annotated[str | None, Query(max_length=400, description="`after` of the page before.")]


@router.get("/devices", tags=["devices"])
async def devices(
    actor: Caller,
    fleet: Services,
    query: Filter = "",
    sort: Annotated[str, Query(max_length=64)] = "name",
    limit: Limit = 50,
    after: After = None,
) -> views.Page[views.DeviceView]:
    """Devices that match, page by page."""
    return await fleet.registry.devices(actor, query, sort=sort, limit=limit, after=after)


@router.get("/devices/counts", tags=["devices"])
async def counts(actor: Caller, fleet: Services, query: Filter = "") -> Mapping[str, int]:
    """How many of the matching devices are in which state."""
    return await fleet.registry.counts(actor, query)


@router.get("/devices/uids", tags=["devices"])
async def uids(actor: Caller, fleet: Services, query: Filter = "") -> Matching:
    """Every device that matches: what an action on this query would touch."""
    return Matching(uids=tuple(await fleet.registry.uids(actor, query)))


@router.get("/devices/{uid}", tags=["devices"])
async def device(uid: str, actor: Caller, fleet: Services) -> views.DeviceDetail:
    """One device, whole."""
    return await fleet.registry.device(actor, uid)


@router.patch("/devices/{uid}", tags=["devices"])
async def edit(uid: str, body: DeviceEdit, actor: Caller, fleet: Services) -> views.DeviceDetail:
    """Its name, labels and notes; what is not given stays."""
    return await fleet.registry.edit(actor, uid, name=body.name, labels=body.labels, notes=body.notes)


@router.delete("/devices/{uid}", status_code=204, tags=["devices"])
async def retire(uid: str, actor: Caller, fleet: Services) -> None:
    """Decommission it: its keys are revoked, its history stays."""
    await fleet.registry.retire(actor, uid)


@router.get("/devices/{uid}/shadows/{shadow}", tags=["devices"])
async def shadow(uid: str, shadow: Shadow, actor: Caller, fleet: Services) -> views.ShadowView:
    """What is desired, and what is in force."""
    return await fleet.shadows.shadow(actor, uid, shadow)


@router.put("/devices/{uid}/shadows/{shadow}", tags=["devices"])
async def desire(uid: str, shadow: Shadow, body: Desire, actor: Caller, fleet: Services) -> views.ShadowView:
    """A new generation of the whole document."""
    return await fleet.shadows.desire(actor, uid, shadow, body.document)


@router.get("/devices/{uid}/telemetry", tags=["telemetry"])
async def names(uid: str, actor: Caller, fleet: Services) -> Sequence[str]:
    """Which values it has sent."""
    return await fleet.telemetry.names(actor, uid)


@router.get("/devices/{uid}/telemetry/{name}", tags=["telemetry"])
async def series(
    uid: str,
    name: str,
    actor: Caller,
    fleet: Services,
    since: Annotated[float, Query(description="Seconds since 1970.")],
    until: float | None = None,
    span_s: Annotated[int | None, Query(description="60 or 3600; without it the finest that is some hundreds.")] = None,
) -> views.SeriesView:
    """Points of one value."""
    return await fleet.telemetry.series(actor, uid, name, since=since, until=until, span_s=span_s)


@router.get("/groups", tags=["groups"])
async def groups(actor: Caller, fleet: Services) -> Sequence[views.GroupView]:
    return await fleet.registry.groups(actor)


@router.put("/groups", tags=["groups"])
async def save_group(body: GroupSave, actor: Caller, fleet: Services) -> views.GroupView:
    """Save a query under a name, in place of one of that name."""
    return await fleet.registry.save_group(actor, body.name, body.query)


@router.delete("/groups/{group_id}", status_code=204, tags=["groups"])
async def delete_group(group_id: str, actor: Caller, fleet: Services) -> None:
    await fleet.registry.delete_group(actor, group_id)


@router.get("/events", tags=["events"])
async def events(
    actor: Caller, fleet: Services, uid: str | None = None, limit: Limit = 100, after: After = None
) -> views.Page[views.EventView]:
    """What happened, the latest first; of one device with `uid`."""
    return await fleet.registry.events(actor, uid, limit=limit, after=after)


@router.get(
    "/changes", tags=["events"], response_class=Response, responses={200: {"content": {"text/event-stream": {}}}}
)
async def changes(request: Request, actor: Caller, fleet: Services) -> Response:
    """Server-sent events: `change` with `kind` and `id` of what is no longer as it was; `lost`: read everything again."""
    return event_stream(request, changes_of(fleet.changes, actor.tenant))
