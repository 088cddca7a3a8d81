"""Rollouts as people and programs handle them; implements `fleet.services.Rollouts`. `runner.py` carries them out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from edgewise.cloud.fleet import views
from edgewise.cloud.fleet.actor import Actor
from edgewise.cloud.fleet.audit import record
from edgewise.cloud.fleet.changes import Change, Changes
from edgewise.cloud.fleet.db.database import FleetDatabase
from edgewise.cloud.fleet.db.tables import Rollout, RolloutDevice
from edgewise.cloud.fleet.rollouts.facts import wanted_models
from edgewise.cloud.fleet.rollouts.plan import RolloutPlan, read_plan
from edgewise.cloud.fleet.services import Registry
from edgewise.core.clock import Clock, SystemClock
from edgewise.core.errors import Conflict, InvalidRequest, NotFound, NotPermitted
from edgewise.wire.envelope import new_ulid
from edgewise.wire.fleet import Shadow

ACTS: Mapping[str, tuple[str, ...]] = {
    "start": ("draft",),
    "approve": ("waiting-approval",),
    "pause": ("running",),
    "resume": ("paused",),
    "cancel": ("draft", "waiting-approval", "running", "paused"),
    "roll-back": ("running", "paused", "waiting-approval", "succeeded", "failed"),
}
"""What may be done in which states."""


class RolloutService:
    """Args:
    registry: Answers which devices a query matches.
    """

    def __init__(self, db: FleetDatabase, registry: Registry, changes: Changes, *, clock: Clock | None = None) -> None:
        self._db, self._registry, self._changes = db, registry, changes
        self._clock = clock or SystemClock()

    async def create(
        self,
        actor: Actor,
        name: str,
        shadow: Shadow,
        document: Mapping[str, Any],
        query: str,
        plan: Mapping[str, Any],
        *,
        start: bool = False,
    ) -> views.RolloutView:
        """A draft, or with `start` one that begins at once.

        Raises:
            InvalidRequest: Name, document, query or plan is not as it must be, or the query matches no device.
        """
        actor.need("operator")
        parsed = read_plan(plan)
        _check(name, shadow, document, parsed)
        if not await self._registry.uids(actor, query):
            raise InvalidRequest(
                f"query: no device matches {query!r} now; look at it with `edgewise fleet devices`.", param="query"
            )
        for stage in parsed.stages:
            if stage.query is not None:
                await self._registry.uids(actor, stage.query)  # says where it is wrong
        now = self._clock.time()
        row = Rollout(
            id=new_ulid(),
            tenant_id=actor.tenant,
            name=name,
            shadow=shadow,
            document=dict(document),
            query=query,
            plan=parsed.model_dump(mode="json"),
            state="draft",
            author=actor.name,
            created_at=now,
            changed_at=now,
        )

        def add(session: Session) -> None:
            session.add(row)
            facts = {"name": name, "shadow": shadow, "document": dict(document), "query": query, "plan": row.plan}
            record(session, actor, "rollout.create", row.id, after=facts)
            if start:
                _do(session, actor, row, "start", now)

        await self._db.write(add)
        self._changes.publish(Change(actor.tenant, "rollout", row.id))
        return await self.rollout(actor, row.id)

    async def act(self, actor: Actor, rollout_id: str, what: str) -> views.RolloutView:
        """Raises `InvalidRequest` for an unknown act, `Conflict` in a state that does not allow it, `NotPermitted` for an
        approval by the author."""
        actor.need("operator")
        if what not in ACTS:
            raise InvalidRequest(f"{what[:40]!r} is no act on a rollout: {', '.join(ACTS)}", param="what")
        now = self._clock.time()

        def work(session: Session) -> None:
            _do(session, actor, _find(session, actor, rollout_id), what, now)

        await self._db.write(work)
        self._changes.publish(Change(actor.tenant, "rollout", rollout_id))
        return await self.rollout(actor, rollout_id)

    async def rollout(self, actor: Actor, rollout_id: str) -> views.RolloutView:
        """One, with its devices.

        Raises:
            NotFound: There is none of this id.
        """

        def work(session: Session) -> views.RolloutView:
            row = _find(session, actor, rollout_id)
            of_it = select(RolloutDevice).where(RolloutDevice.rollout_id == row.id)
            devices = list(session.scalars(of_it.order_by(RolloutDevice.stage, RolloutDevice.uid)))
            counts = Counter(device.state for device in devices)
            shown = tuple(views.RolloutDeviceView.model_validate(device) for device in devices)
            return _view(row, counts).model_copy(update={"devices": shown})

        return await self._db.read(work)

    async def rollouts(
        self, actor: Actor, *, limit: int = 50, after: str | None = None
    ) -> views.Page[views.RolloutView]:
        """Newest first, without their devices."""

        def work(session: Session) -> views.Page[views.RolloutView]:
            mine = Rollout.tenant_id == actor.tenant
            total = session.scalar(select(func.count()).select_from(Rollout).where(mine)) or 0
            statement = select(Rollout).where(mine).order_by(Rollout.id.desc()).limit(limit + 1)
            if after is not None:
                statement = statement.where(Rollout.id < after)
            rows = list(session.scalars(statement))
            counts = _counts(session, [row.id for row in rows])
            items = tuple(_view(row, counts.get(row.id, Counter())) for row in rows[:limit])
            return views.Page(items=items, total=total, after=rows[limit - 1].id if len(rows) > limit else None)

        return await self._db.read(work)


def _check(name: str, shadow: Shadow, document: Mapping[str, Any], plan: RolloutPlan) -> None:
    if not 0 < len(name) <= 128:
        raise InvalidRequest("name: 1 to 128 characters", param="name")
    if shadow == "software":
        raise InvalidRequest(
            "shadow: software is not rolled out: devices refuse it as unsigned until there is signed metadata.",
            param="shadow",
        )
    if shadow not in ("models", "config", "policy"):
        raise InvalidRequest(f"shadow: {shadow!r} is none of models, config, policy", param="shadow")
    if not document:
        raise InvalidRequest("document: it is empty; say what is desired", param="document")
    if shadow == "models" and plan.behaviour is not None and len(wanted_models(document)) > 1:
        raise InvalidRequest(
            "document: it brings several models, but a trial judges one: make a rollout for each, or set plan.behaviour to null.",
            param="document",
        )


def _find(session: Session, actor: Actor, rollout_id: str) -> Rollout:
    row = session.get(Rollout, rollout_id)
    if row is None or row.tenant_id != actor.tenant:
        raise NotFound(f"There is no rollout {rollout_id[:40]!r}.")
    return row


def _do(session: Session, actor: Actor, row: Rollout, what: str, now: float) -> None:
    if row.state not in ACTS[what]:
        raise Conflict(f"The rollout is {row.state}; {what} is possible when it is {' or '.join(ACTS[what])}.")
    before = {"state": row.state}
    change: Callable[[], None] = {
        "start": lambda: _start(row, now),
        "approve": lambda: _approve(row, actor, now),
        "pause": lambda: _set(row, "paused", f"Paused by {actor.name}."),
        "resume": lambda: _resume(row, now),
        "cancel": lambda: _set(row, "cancelled", f"Cancelled by {actor.name}; what was changed stays changed."),
        "roll-back": lambda: _set(row, "rolling-back", f"Rolled back by {actor.name}."),
    }[what]
    change()
    row.changed_at = now
    record(session, actor, f"rollout.{what}", row.id, before=before, after={"state": row.state})


def _set(row: Rollout, state: str, reason: str) -> None:
    row.state, row.reason = state, reason


def _start(row: Rollout, now: float) -> None:
    plan = read_plan(row.plan)
    if plan.approval or plan.stages[0].approval:
        _set(row, "waiting-approval", "It waits for the approval of somebody other than its author.")
    else:
        _set(row, "running", "")
    row.stage_at = now


def _approve(row: Rollout, actor: Actor, now: float) -> None:
    if row.author == actor.name:
        raise NotPermitted("A rollout is approved by somebody other than its author.")
    row.approved_by, row.stage_at = actor.name, now
    _set(row, "running", "")


def _resume(row: Rollout, now: float) -> None:
    """The stage has the time again that it was paused for."""
    if row.stage_at is not None:
        row.stage_at += now - row.changed_at
    _set(row, "running", "")


def _counts(session: Session, ids: Sequence[str]) -> dict[str, Counter[str]]:
    statement = (
        select(RolloutDevice.rollout_id, RolloutDevice.state, func.count())
        .where(RolloutDevice.rollout_id.in_(ids))
        .group_by(RolloutDevice.rollout_id, RolloutDevice.state)
    )
    counts: dict[str, Counter[str]] = {}
    for rollout_id, state, count in session.execute(statement):
        counts.setdefault(rollout_id, Counter())[state] = count
    return counts


def _view(row: Rollout, counts: Mapping[str, int]) -> views.RolloutView:
    fields = {name: getattr(row, name) for name in views.RolloutView.model_fields if name not in ("counts", "devices")}
    return views.RolloutView(**fields, counts=dict(counts))
