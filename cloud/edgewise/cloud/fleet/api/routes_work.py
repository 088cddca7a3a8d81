"""Commands, rollouts, alerts and their rules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from edgewise.cloud.fleet import views
from edgewise.cloud.fleet.api.auth import Caller
from edgewise.cloud.fleet.api.bodies import CommandSend, Lines, RolloutCreate, Silence
from edgewise.cloud.fleet.api.routes_devices import After, Limit
from edgewise.cloud.fleet.api.state import Services
from edgewise.cloud.fleet.api.streams import acks_of, event_stream
from edgewise.core.errors import InvalidRequest, NotFound

router = APIRouter()


@router.post("/commands", status_code=202, tags=["commands"])
async def send(body: CommandSend, actor: Caller, fleet: Services) -> Sequence[views.CommandView]:
    """Send a command to devices; it reaches those that are away when they come back, until it expires."""
    if (body.uids is None) == (body.query is None):
        raise InvalidRequest("Say for which devices: either `uids` or `query`.", param="uids")
    uids = body.uids if body.uids is not None else tuple(await fleet.registry.uids(actor, body.query or ""))
    if not uids:
        raise NotFound("No device matches.", param="query")
    return await fleet.commands.send(
        actor,
        uids,
        body.op,
        body.args,
        key=body.key,
        ttl_s=body.ttl_s,
        total_s=body.total_s,
        step_s=body.step_s,
    )


@router.get("/commands", tags=["commands"])
async def commands(
    actor: Caller,
    fleet: Services,
    uid: str | None = None,
    batch_id: str | None = None,
    state: str | None = None,
    limit: Limit = 50,
    after: After = None,
) -> views.Page[views.CommandView]:
    """Commands, the latest first."""
    return await fleet.commands.commands(actor, uid=uid, batch_id=batch_id, state=state, limit=limit, after=after)


@router.get("/commands/{command_id}", tags=["commands"])
async def command(command_id: str, actor: Caller, fleet: Services) -> views.CommandView:
    """One command with the steps of its life."""
    return await fleet.commands.command(actor, command_id)


@router.post("/commands/{command_id}/cancel", status_code=202, tags=["commands"])
async def cancel(command_id: str, actor: Caller, fleet: Services) -> views.CommandView:
    """Ask for its end; the state says what really happened."""
    return await fleet.commands.cancel(actor, command_id)


@router.get("/commands/{command_id}/log", tags=["commands"])
async def log(command_id: str, actor: Caller, fleet: Services) -> Lines:
    """What a command `logs` has brought."""
    return Lines(lines=tuple(await fleet.commands.log(actor, command_id)))


@router.get(
    "/commands/{command_id}/stream",
    tags=["commands"],
    response_class=Response,
    responses={200: {"content": {"text/event-stream": {}}}},
)
async def stream(command_id: str, request: Request, actor: Caller, fleet: Services) -> Response:
    """Server-sent events `ack` until it has ended: changes of its state, and pieces of the answer of `infer`."""
    await fleet.commands.command(actor, command_id)  # unknown: 404 before the stream begins
    return event_stream(request, acks_of(request, fleet.commands.stream(actor, command_id)))


@router.post("/rollouts", status_code=201, tags=["rollouts"])
async def create_rollout(body: RolloutCreate, actor: Caller, fleet: Services) -> views.RolloutView:
    """Bring a desired document to a group, stage by stage; with `start` it begins (or waits for approval) at once."""
    return await fleet.rollouts.create(
        actor, body.name, body.shadow, body.document, body.query, body.plan, start=body.start
    )


@router.get("/rollouts", tags=["rollouts"])
async def rollouts(
    actor: Caller, fleet: Services, limit: Limit = 50, after: After = None
) -> views.Page[views.RolloutView]:
    """Rollouts, the latest first."""
    return await fleet.rollouts.rollouts(actor, limit=limit, after=after)


@router.get("/rollouts/{rollout_id}", tags=["rollouts"])
async def rollout(rollout_id: str, actor: Caller, fleet: Services) -> views.RolloutView:
    """One rollout with its devices."""
    return await fleet.rollouts.rollout(actor, rollout_id)


Act = Literal["start", "approve", "pause", "resume", "cancel", "roll-back"]


@router.post("/rollouts/{rollout_id}/{what}", status_code=202, tags=["rollouts"])
async def act(rollout_id: str, what: Act, actor: Caller, fleet: Services) -> views.RolloutView:
    return await fleet.rollouts.act(actor, rollout_id, what)


@router.get("/alerts", tags=["alerts"])
async def alerts(
    actor: Caller,
    fleet: Services,
    open_only: Annotated[bool, Query(description="false: also those that are over.")] = True,
    uid: str | None = None,
    limit: Limit = 100,
    after: After = None,
) -> views.Page[views.AlertView]:
    """Alerts, the latest first."""
    return await fleet.alerts.alerts(actor, open_only=open_only, uid=uid, limit=limit, after=after)


@router.post("/alerts/{alert_id}/acknowledge", tags=["alerts"])
async def acknowledge(alert_id: str, actor: Caller, fleet: Services) -> views.AlertView:
    """Somebody looks after it."""
    return await fleet.alerts.acknowledge(actor, alert_id)


@router.get("/rules", tags=["alerts"])
async def rules(actor: Caller, fleet: Services) -> Sequence[views.AlertRuleView]:
    return await fleet.alerts.rules(actor)


@router.put("/rules", tags=["alerts"])
async def save_rule(body: dict[str, Any], actor: Caller, fleet: Services) -> views.AlertRuleView:
    """A new rule, or with `id` another form of one that is there; its fields are in docs/alerts.md."""
    return await fleet.alerts.save_rule(actor, body)


@router.delete("/rules/{rule_id}", status_code=204, tags=["alerts"])
async def delete_rule(rule_id: str, actor: Caller, fleet: Services) -> None:
    await fleet.alerts.delete_rule(actor, rule_id)


@router.post("/rules/{rule_id}/silence", tags=["alerts"])
async def silence(rule_id: str, body: Silence, actor: Caller, fleet: Services) -> views.AlertRuleView:
    """Deliver nothing of it for so long; 0 ends the silence."""
    return await fleet.alerts.silence(actor, rule_id, body.seconds)
