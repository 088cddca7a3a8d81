"""The values that conditions look at, read from the database."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from edgewise.cloud.fleet.alerts.rules import Certificate, Condition, Gauge, Offline, Rise, Share
from edgewise.cloud.fleet.db.tables import Device, DeviceKey, RollupRow, ShadowRow

_MINUTE, _HOUR, _WEEK_S = 60, 3600, 7 * 86_400
_RECENT_S = 600
_LEAST_HOURS = 24


def values(session: Session, condition: Condition, devices: Sequence[Device], now: float) -> dict[str, float | None]:
    """By device; None where nothing is known, and for gauges of a device that is not there."""
    uids = [device.uid for device in devices]
    if isinstance(condition, Gauge):
        return {device.uid: _gauge(condition, device) for device in devices}
    if isinstance(condition, Offline):
        return {device.uid: float(device.state == "offline") for device in devices}
    if isinstance(condition, Share):
        return _shares(session, condition, uids, now)
    if isinstance(condition, Rise):
        return _rises(session, condition, uids, now)
    if isinstance(condition, Certificate):
        return _certificates(session, uids, now)
    return _out_of_sync(session, uids)


def _gauge(condition: Gauge, device: Device) -> float | None:
    if device.state not in ("online", "degraded", "draining"):
        return None
    value = device.gauges.get(condition.value)
    if value is None or condition.of is None:
        return value
    whole = device.gauges.get(condition.of)
    return value / whole if whole else None


def _shares(session: Session, condition: Share, uids: Sequence[str], now: float) -> dict[str, float | None]:
    sums = _sums(session, [condition.value, *condition.among], uids, now - condition.window_s)
    result: dict[str, float | None] = {}
    for uid in uids:
        whole = sum(sums.get((uid, name), 0.0) for name in dict.fromkeys(condition.among))
        result[uid] = sums.get((uid, condition.value), 0.0) / whole if whole >= condition.least else None
    return result


def _sums(session: Session, names: Sequence[str], uids: Sequence[str], since: float) -> dict[tuple[str, str], float]:
    statement = (
        select(RollupRow.uid, RollupRow.name, func.sum(RollupRow.total))
        .where(RollupRow.span_s == _MINUTE, RollupRow.at >= since, RollupRow.name.in_(set(names)))
        .group_by(RollupRow.uid, RollupRow.name)
    )
    wanted = set(uids)
    return {(uid, name): total for uid, name, total in session.execute(statement) if uid in wanted}


def _rises(session: Session, condition: Rise, uids: Sequence[str], now: float) -> dict[str, float | None]:
    new = _means(session, condition.value, _MINUTE, now - _RECENT_S, now)
    old = _means(session, condition.value, _HOUR, now - _WEEK_S, now - _HOUR)
    result: dict[str, float | None] = {}
    for uid in uids:
        recent, before = new.get(uid), old.get(uid)
        known = recent is not None and before is not None and before[1] >= _LEAST_HOURS and before[0] > 0
        result[uid] = recent[0] / before[0] if known and recent and before else None
    return result


def _means(session: Session, name: str, span_s: int, since: float, until: float) -> dict[str, tuple[float, int]]:
    """Mean of the means and how many there are, by device."""
    mean: Any = RollupRow.total / RollupRow.count
    statement = (
        select(RollupRow.uid, func.avg(mean), func.count())
        .where(RollupRow.name == name, RollupRow.span_s == span_s, RollupRow.at >= since, RollupRow.at < until)
        .group_by(RollupRow.uid)
    )
    return {uid: (float(value), count) for uid, value, count in session.execute(statement)}


def _certificates(session: Session, uids: Sequence[str], now: float) -> dict[str, float | None]:
    statement = select(DeviceKey.uid, func.max(DeviceKey.expires_at)).where(DeviceKey.state == "active")
    days = {uid: (ends - now) / 86_400 for uid, ends in session.execute(statement.group_by(DeviceKey.uid)) if ends}
    return {uid: days.get(uid) for uid in uids}


def _out_of_sync(session: Session, uids: Sequence[str]) -> dict[str, float | None]:
    behind = set(session.scalars(select(ShadowRow.uid).where(ShadowRow.gen > ShadowRow.applied)))
    return {uid: float(uid in behind) for uid in uids}
