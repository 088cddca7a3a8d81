"""Looks at every rule of every fleet, raises and ends alerts, and has them delivered."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from sqlalchemy import select
from sqlalchemy.orm import Session

from edgewise.cloud.fleet.actor import service
from edgewise.cloud.fleet.alerts.delivery import Delivery, owe
from edgewise.cloud.fleet.alerts.machine import Reading, Standing, hold_s, read, step
from edgewise.cloud.fleet.alerts.readings import values
from edgewise.cloud.fleet.alerts.rules import Certificate, Condition, Gauge, Offline, OutOfSync, Rise, read_condition
from edgewise.cloud.fleet.changes import Change, Changes
from edgewise.cloud.fleet.db.database import FleetDatabase
from edgewise.cloud.fleet.db.tables import Alert, AlertRule, Device
from edgewise.cloud.fleet.services import Registry
from edgewise.core.clock import Clock, SystemClock
from edgewise.core.patience import end_task
from edgewise.core.recurring import Guard, recur
from edgewise.wire.envelope import new_ulid

_CHUNK = 500


@dataclass(frozen=True, slots=True)
class _Turn:
    """An alert that is to be raised or ended."""

    uid: str
    name: str
    reading: Reading
    raised: bool


class AlertEngine:
    """One task. How long a condition has held is counted from the first look after a start; open alerts are known from the
    database.

    Args:
        period_s: Between two looks.
    """

    def __init__(
        self,
        db: FleetDatabase,
        registry: Registry,
        delivery: Delivery,
        changes: Changes,
        *,
        clock: Clock | None = None,
        period_s: float = 5.0,
    ) -> None:
        self._db, self._registry, self._delivery, self._changes = db, registry, delivery, changes
        self._clock = clock or SystemClock()
        self._period_s = period_s
        self._standings: dict[str, dict[str, Standing]] = {}
        self._guard = Guard()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        work = recur(self._turn, every_s=self._period_s, stuck="alerts_stuck")
        self._task = asyncio.create_task(work, name="alerts")

    async def stop(self) -> None:
        await end_task(self._task)
        await self._delivery.close()

    async def _turn(self) -> None:
        await self.tick()
        await self._delivery.deliver(self._clock.time())

    async def tick(self) -> None:
        """Look at every rule once; what is wrong with one keeps no other from being looked at."""
        rules = await self._db.read(lambda session: list(session.scalars(select(AlertRule))))
        for gone in self._standings.keys() - {rule.id for rule in rules}:
            del self._standings[gone]
        for rule in rules:
            await self._guard.run(partial(self._look, rule), stuck="alert_rule_fails", rule=rule.name)

    async def _look(self, rule: AlertRule) -> None:
        now = self._clock.time()
        if rule.id not in self._standings:
            self._standings[rule.id] = await self._db.read(lambda session: _open(session, rule.id))
        standings = self._standings[rule.id]
        uids = await self._registry.uids(service(rule.tenant_id, "alerts"), rule.query) if rule.enabled else []
        condition = read_condition(rule.condition)
        names, readings = await self._db.read(lambda session: _readings(session, condition, uids, now))
        turns = []
        for uid, reading in readings.items():
            before = standings.get(uid, Standing())
            after = step(before, reading, hold_s(condition), now)
            standings[uid] = after
            if before.raised != after.raised:
                turns.append(_Turn(uid, names[uid], reading, after.raised))
        for uid in standings.keys() - readings.keys():  # the rule is off, or the device is no longer one of these
            over = standings.pop(uid)
            turns += [_Turn(uid, uid, Reading(None), raised=False)] if over.raised else []
        if turns:
            await self._db.write(lambda session: _enter(session, rule, condition, turns, now))
            self._changes.publish(Change(rule.tenant_id, "alert"))


def _open(session: Session, rule_id: str) -> dict[str, Standing]:
    rows = session.scalars(select(Alert).where(Alert.rule_id == rule_id, Alert.cleared_at.is_(None)))
    return {row.uid or "": Standing(row.raised_at, raised=True) for row in rows}


def _readings(
    session: Session, condition: Condition, uids: Sequence[str], now: float
) -> tuple[dict[str, str], dict[str, Reading]]:
    names: dict[str, str] = {}
    readings: dict[str, Reading] = {}
    for begin in range(0, len(uids), _CHUNK):
        devices = list(session.scalars(select(Device).where(Device.uid.in_(uids[begin : begin + _CHUNK]))))
        names |= {device.uid: device.name or device.uid for device in devices}
        found = values(session, condition, devices, now)
        readings |= {uid: read(condition, value) for uid, value in found.items()}
    return names, readings


def _enter(session: Session, rule: AlertRule, condition: Condition, turns: Sequence[_Turn], now: float) -> None:
    silent = rule.silenced_until is not None and now < rule.silenced_until
    for turn in turns:
        if turn.raised:
            row = Alert(
                id=new_ulid(),
                tenant_id=rule.tenant_id,
                rule_id=rule.id,
                uid=turn.uid,
                severity=rule.severity,
                message=f"{turn.name}: {_words(condition, turn.reading.value)}",
                value=turn.reading.value,
                raised_at=now,
                delivered=[] if silent else owe(rule.deliver, "raised", now),
            )
            session.add(row)
            continue
        over = select(Alert).where(Alert.rule_id == rule.id, Alert.uid == turn.uid, Alert.cleared_at.is_(None))
        for row in session.scalars(over):
            row.cleared_at = now
            told = [entry["to"] for entry in row.delivered if entry["what"] == "raised"]
            row.delivered = [*row.delivered, *owe(told, "cleared", now)]


def _words(condition: Condition, value: float | None) -> str:
    """What is the matter, for people."""
    if isinstance(condition, Offline):
        return f"offline for {condition.for_s:g} s"
    if isinstance(condition, OutOfSync):
        return "what is desired is not in force"
    if isinstance(condition, Certificate):
        return f"its certificate ends in {value or 0:.1f} days"
    bound = f"above {condition.above:g}" if condition.above is not None else f"below {condition.below:g}"
    name = condition.value
    if isinstance(condition, Gauge) and condition.of is not None:
        name = f"{condition.value} / {condition.of}"
    if isinstance(condition, Rise):
        return f"{name} is {value or 0:.2f} times its usual value ({bound})"
    return f"{name} is {value or 0:.4g} ({bound})"
