"""Alerts and rules as people and programs handle them; implements `fleet.services.Alerts`. `engine.py` raises and ends them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from edgewise.cloud.fleet import views
from edgewise.cloud.fleet.actor import Actor
from edgewise.cloud.fleet.alerts.rules import DEFAULTS, Rule, read_rule
from edgewise.cloud.fleet.audit import record
from edgewise.cloud.fleet.changes import Change, Changes
from edgewise.cloud.fleet.db.database import FleetDatabase
from edgewise.cloud.fleet.db.tables import Alert, AlertRule
from edgewise.cloud.fleet.services import Registry
from edgewise.core.clock import Clock, SystemClock
from edgewise.core.errors import Conflict, InvalidRequest, NotFound
from edgewise.wire.envelope import new_ulid

_LONGEST_SILENCE_S = 30 * 86_400.0


class AlertService:
    """Args:
    registry: Says whether a rule's query can be read.
    """

    def __init__(self, db: FleetDatabase, registry: Registry, changes: Changes, *, clock: Clock | None = None) -> None:
        self._db, self._registry, self._changes = db, registry, changes
        self._clock = clock or SystemClock()

    async def alerts(
        self,
        actor: Actor,
        *,
        open_only: bool = True,
        uid: str | None = None,
        limit: int = 100,
        after: str | None = None,
    ) -> views.Page[views.AlertView]:
        """Newest first."""

        def work(session: Session) -> views.Page[views.AlertView]:
            wanted = [Alert.tenant_id == actor.tenant]
            if open_only:
                wanted.append(Alert.cleared_at.is_(None))
            if uid is not None:
                wanted.append(Alert.uid == uid)
            total = session.scalar(select(func.count()).select_from(Alert).where(*wanted)) or 0
            statement = select(Alert, AlertRule.name).join(AlertRule).where(*wanted).order_by(Alert.id.desc())
            if after is not None:
                statement = statement.where(Alert.id < after)
            rows = list(session.execute(statement.limit(limit + 1)))
            items = tuple(_view(alert, name) for alert, name in rows[:limit])
            return views.Page(items=items, total=total, after=items[-1].id if len(rows) > limit else None)

        return await self._db.read(work)

    async def acknowledge(self, actor: Actor, alert_id: str) -> views.AlertView:
        """Somebody has seen it; the first name stays."""
        actor.need("operator")

        def work(session: Session) -> views.AlertView:
            row = session.get(Alert, alert_id)
            if row is None or row.tenant_id != actor.tenant:
                raise NotFound(f"There is no alert {alert_id[:40]!r}.")
            if not row.acknowledged_by:
                row.acknowledged_by = actor.name
                record(session, actor, "alert.acknowledge", row.id, after={"message": row.message})
            return _view(row, session.get_one(AlertRule, row.rule_id).name)

        view = await self._db.write(work)
        self._changes.publish(Change(actor.tenant, "alert", alert_id))
        return view

    async def rules(self, actor: Actor) -> Sequence[views.AlertRuleView]:
        """By name."""

        def work(session: Session) -> list[views.AlertRuleView]:
            rows = session.scalars(
                select(AlertRule).where(AlertRule.tenant_id == actor.tenant).order_by(AlertRule.name)
            )
            return [_rule_view(row) for row in rows]

        return await self._db.read(work)

    async def save_rule(self, actor: Actor, rule: Mapping[str, Any]) -> views.AlertRuleView:
        """A new rule, or with `id` the rule of this id anew.

        Raises:
            InvalidRequest: A field is not as it must be. Conflict: Another rule has the name. NotFound: There is none of this id.
        """
        actor.need("operator")
        wanted = read_rule(rule)
        await self._registry.uids(actor, wanted.query)  # says where it is wrong
        now = self._clock.time()

        def work(session: Session) -> views.AlertRuleView:
            same = select(AlertRule).where(AlertRule.tenant_id == actor.tenant, AlertRule.name == wanted.name)
            other = session.scalars(same).first()
            if other is not None and other.id != wanted.id:
                raise Conflict(
                    f"There is a rule {wanted.name!r} already: change it (its id is {other.id}) or take another name."
                )
            row = _new(actor.tenant, now) if wanted.id is None else _find_rule(session, actor, wanted.id)
            before = None if wanted.id is None else _facts(row)
            _fill(row, wanted)
            session.add(row)
            session.flush()
            record(session, actor, "alert-rule.save", row.id, before=before, after=_facts(row))
            return _rule_view(row)

        view = await self._db.write(work)
        self._changes.publish(Change(actor.tenant, "alert"))
        return view

    async def delete_rule(self, actor: Actor, rule_id: str) -> None:
        """With the alerts that it raised."""
        actor.need("operator")

        def work(session: Session) -> None:
            row = _find_rule(session, actor, rule_id)
            record(session, actor, "alert-rule.delete", row.id, before=_facts(row))
            session.execute(delete(Alert).where(Alert.rule_id == row.id))
            session.delete(row)

        await self._db.write(work)
        self._changes.publish(Change(actor.tenant, "alert"))

    async def silence(self, actor: Actor, rule_id: str, seconds: float) -> views.AlertRuleView:
        """Alerts of a rule are raised and shown, but nobody is told for so long; 0 ends a silence."""
        actor.need("operator")
        if not 0 <= seconds <= _LONGEST_SILENCE_S:
            raise InvalidRequest(f"seconds: 0 to {_LONGEST_SILENCE_S:g}", param="seconds")
        until = self._clock.time() + seconds if seconds else None

        def work(session: Session) -> views.AlertRuleView:
            row = _find_rule(session, actor, rule_id)
            before = {"silenced_until": row.silenced_until}
            row.silenced_until = until
            record(session, actor, "alert-rule.silence", row.id, before=before, after={"silenced_until": until})
            return _rule_view(row)

        view = await self._db.write(work)
        self._changes.publish(Change(actor.tenant, "alert"))
        return view

    async def add_defaults(self, actor: Actor) -> int:
        """The default rules, for a fleet that has none; how many were added."""
        now = self._clock.time()

        def work(session: Session) -> int:
            if session.scalars(select(AlertRule.id).where(AlertRule.tenant_id == actor.tenant).limit(1)).first():
                return 0
            for rule in DEFAULTS:
                row = _new(actor.tenant, now)
                _fill(row, rule)
                session.add(row)
            record(session, actor, "alert-rule.defaults", after={"rules": [rule.name for rule in DEFAULTS]})
            return len(DEFAULTS)

        return await self._db.write(work)


def _new(tenant: str, now: float) -> AlertRule:
    return AlertRule(id=new_ulid(), tenant_id=tenant, created_at=now)


def _fill(row: AlertRule, rule: Rule) -> None:
    row.name, row.query, row.severity, row.enabled = rule.name, rule.query, rule.severity, rule.enabled
    row.condition = rule.condition.model_dump(mode="json", exclude_none=True)
    row.deliver = [receiver.model_dump(exclude_none=True) for receiver in rule.deliver]


def _find_rule(session: Session, actor: Actor, rule_id: str) -> AlertRule:
    row = session.get(AlertRule, rule_id)
    if row is None or row.tenant_id != actor.tenant:
        raise NotFound(f"There is no alert rule {rule_id[:40]!r}.")
    return row


def _facts(row: AlertRule) -> dict[str, Any]:
    return {name: getattr(row, name) for name in ("name", "query", "condition", "severity", "deliver", "enabled")}


def _rule_view(row: AlertRule) -> views.AlertRuleView:
    return views.AlertRuleView.model_validate(row)


def _view(alert: Alert, rule: str) -> views.AlertView:
    names = [name for name in views.AlertView.model_fields if name != "rule"]
    return views.AlertView(rule=rule, **{name: getattr(alert, name) for name in names})
