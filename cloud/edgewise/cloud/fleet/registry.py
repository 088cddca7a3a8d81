"""Devices, labels, groups and events; implements `fleet.services.Registry`."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, case, func, select, tuple_
from sqlalchemy.orm import Session

from edgewise.cloud.fleet import views
from edgewise.cloud.fleet.actor import Actor
from edgewise.cloud.fleet.audit import record
from edgewise.cloud.fleet.changes import Change, Changes
from edgewise.cloud.fleet.db.database import FleetDatabase
from edgewise.cloud.fleet.db.tables import Alert, CommandRow, Device, DeviceKey, EventRow, ShadowRow
from edgewise.cloud.fleet.downlink import Downlink
from edgewise.cloud.fleet.groups import Groups, group_query
from edgewise.cloud.fleet.held import count_models
from edgewise.cloud.fleet.labels import check_labels, check_name, set_labels
from edgewise.cloud.fleet.owned import find_device
from edgewise.cloud.fleet.pages import check_limit, read_cursor, write_cursor
from edgewise.cloud.fleet.query.compile import Context, condition
from edgewise.core.clock import Clock, SystemClock
from edgewise.core.errors import EdgewiseError, InvalidRequest
from edgewise.core.log import get_logger
from edgewise.wire.fleet import SHADOWS

log = get_logger(__name__)

MAX_NOTES = 10_000
_URGENCY = ("offline", "degraded", "offline-expected", "draining", "never-seen", "online")
_SORTS: Mapping[str, tuple[Any, type | tuple[type, ...]]] = {
    "name": (Device.folded, str),
    "uid": (Device.uid, str),
    "version": (Device.version_key, str),
    "seen": (func.coalesce(Device.seen_at, 0.0), (int, float)),
    "since": (Device.state_at, (int, float)),
    "state": (case({state: rank for rank, state in enumerate(_URGENCY)}, value=Device.state, else_=0), int),
}
SORTS = tuple(_SORTS)
"""What devices may be sorted by; with "-" before it the other way round. "state" begins with what needs attention most."""


class DeviceRegistry(Groups):
    """Args:
    downlink: Clears what is retained of a device that is retired.
    """

    def __init__(self, db: FleetDatabase, changes: Changes, downlink: Downlink, *, clock: Clock | None = None) -> None:
        super().__init__(db, changes, clock or SystemClock())
        self._downlink = downlink

    # --- reading ---------------------------------------------------------------------------------------------------------

    async def devices(
        self, actor: Actor, query: str = "", *, sort: str = "name", limit: int = 50, after: str | None = None
    ) -> views.Page[views.DeviceView]:
        """A page of those that match.

        Raises:
            QueryError: The query cannot be read.
            InvalidRequest: Unknown sort, limit or cursor.
        """
        check_limit(limit)
        key, kind = _sort(sort)
        seen = None if after is None else read_cursor(after, (str, kind, str))
        if seen is not None and seen[0] != sort:
            raise InvalidRequest(f"'after' is of a list sorted by {seen[0][:20]!r}, not {sort!r}.", param="after")
        back = sort.startswith("-")

        def work(session: Session) -> views.Page[views.DeviceView]:
            where = self._where(session, actor, query)
            total = session.scalar(select(func.count()).select_from(Device).where(*where)) or 0
            rows = select(Device, key).where(*where)
            place = tuple_(key, Device.uid)
            if seen is not None:
                rows = rows.where(place < tuple_(*seen[1:]) if back else place > tuple_(*seen[1:]))
            order = (key.desc(), Device.uid.desc()) if back else (key, Device.uid)
            found = session.execute(rows.order_by(*order).limit(limit + 1)).all()
            alerts = _alerts(session, [row.uid for row, _ in found])
            items = tuple(_view(row, alerts) for row, _ in found[:limit])
            more = len(found) > limit
            return views.Page(
                items=items,
                total=total,
                after=write_cursor(sort, found[limit - 1][1], found[limit - 1][0].uid) if more else None,
            )

        return await self._db.read(work)

    async def counts(self, actor: Actor, query: str = "") -> Mapping[str, int]:
        """Devices by state; states without one are left out."""

        def work(session: Session) -> dict[str, int]:
            where = self._where(session, actor, query)
            rows = session.execute(select(Device.state, func.count()).where(*where).group_by(Device.state))
            return {row[0]: row[1] for row in rows}

        return await self._db.read(work)

    async def device(self, actor: Actor, uid: str) -> views.DeviceDetail:
        return await self._db.read(lambda session: _detail(session, find_device(session, actor, uid)))

    async def uids(self, actor: Actor, query: str) -> Sequence[str]:
        """All that match, sorted."""

        def work(session: Session) -> list[str]:
            where = self._where(session, actor, query)
            return list(session.scalars(select(Device.uid).where(*where).order_by(Device.uid)))

        return await self._db.read(work)

    async def events(
        self, actor: Actor, uid: str | None = None, *, limit: int = 100, after: str | None = None
    ) -> views.Page[views.EventView]:
        """The latest to arrive first."""
        check_limit(limit)
        where = [EventRow.tenant_id == actor.tenant]
        if uid is not None:
            where.append(EventRow.uid == uid)

        def work(session: Session) -> views.Page[views.EventView]:
            total = session.scalar(select(func.count()).select_from(EventRow).where(*where)) or 0
            further = [*where, EventRow.id < after] if after is not None else where
            rows = session.scalars(select(EventRow).where(*further).order_by(EventRow.id.desc()).limit(limit + 1)).all()
            items = tuple(views.EventView.model_validate(row) for row in rows[:limit])
            return views.Page(items=items, total=total, after=items[-1].id if len(rows) > limit else None)

        return await self._db.read(work)

    async def models(self, actor: Actor) -> Sequence[views.ModelUseView]:
        """The models that devices say they hold, most used first."""

        def work(session: Session) -> list[views.ModelUseView]:
            query = select(Device.models).where(Device.tenant_id == actor.tenant, Device.retired_at.is_(None))
            return count_models(session.scalars(query))

        return await self._db.read(work)

    # --- changing --------------------------------------------------------------------------------------------------------

    async def edit(
        self,
        actor: Actor,
        uid: str,
        *,
        name: str | None = None,
        labels: Mapping[str, Any] | None = None,
        notes: str | None = None,
    ) -> views.DeviceDetail:
        """Change what is given; `labels` are all of them, not some more.

        Raises:
            InvalidRequest: A name, label or note is beyond its limits.
        """
        actor.need("operator")
        if name is not None:
            check_name(name)
        if labels is not None:
            check_labels(labels)
        if notes is not None and len(notes) > MAX_NOTES:
            raise InvalidRequest(f"notes: {len(notes)} characters, at most {MAX_NOTES} are possible.", param="notes")

        def work(session: Session) -> views.DeviceDetail:
            device = find_device(session, actor, uid, lock=True)
            before = {"name": device.name, "labels": device.labels, "notes": device.notes}
            if name is not None:
                device.name, device.folded = name, name.casefold()
            if labels is not None:
                set_labels(session, device, labels)
            if notes is not None:
                device.notes = notes
            after = {"name": device.name, "labels": device.labels, "notes": device.notes}
            record(session, actor, "device.edit", uid, before=before, after=after)
            return _detail(session, device)

        detail = await self._db.write(work)
        self._changes.publish(Change(actor.tenant, "device", uid))
        return detail

    async def retire(self, actor: Actor, uid: str) -> None:
        """Decommission: its keys are revoked, its open commands cancelled, retained topics cleared, rows kept for the audit."""
        actor.need("admin")
        now = self._clock.time()

        def work(session: Session) -> None:
            device = find_device(session, actor, uid, lock=True)
            device.retired_at = now
            keys = select(DeviceKey).where(DeviceKey.uid == uid, DeviceKey.state.in_(("active", "pending")))
            for key in session.scalars(keys):
                key.state, key.changed_at = "revoked" if key.state == "active" else "refused", now
            commands = select(CommandRow).where(CommandRow.uid == uid, CommandRow.state.in_(("queued", "sent")))
            for command in session.scalars(commands):
                command.state, command.changed_at, command.reason = "cancelled", now, "the device was retired"
            record(session, actor, "device.retire", uid, before={"name": device.name, "labels": device.labels})

        await self._db.write(work)
        self._changes.publish(Change(actor.tenant, "device", uid))
        try:
            await self._downlink.forget(uid)
        except EdgewiseError as error:
            log.warning("fleet_retained_not_cleared", uid=uid, reason=error.message)

    def _where(self, session: Session, actor: Actor, query: str) -> list[ColumnElement[bool]]:
        context = Context(self._clock.time(), lambda name: group_query(session, actor, name))
        return [Device.tenant_id == actor.tenant, Device.retired_at.is_(None), condition(query, context)]


def add_device(
    session: Session, tenant: str, uid: str, *, name: str = "", labels: Mapping[str, Any] | None = None
) -> Device:
    """A device that is enrolled, in the transaction of its enrolment; it counts as never seen until it speaks."""
    device = Device(uid=uid, tenant_id=tenant, name=name, folded=name.casefold(), created_at=time.time())
    device.labels, device.models, device.gauges, device.gauges_at, device.birth = {}, [], {}, {}, {}
    session.add(device)
    session.flush()
    set_labels(session, device, labels or {})
    return device


def _sort(sort: str) -> tuple[Any, type | tuple[type, ...]]:
    found = _SORTS.get(sort.removeprefix("-"))
    if found is None:
        raise InvalidRequest(
            f"sort: {sort[:40]!r} is not one of {', '.join(SORTS)}, with '-' to go back.", param="sort"
        )
    return found


def _alerts(session: Session, uids: Sequence[str]) -> Mapping[str | None, int]:
    query = select(Alert.uid, func.count()).where(Alert.uid.in_(uids), Alert.cleared_at.is_(None)).group_by(Alert.uid)
    return {row[0]: row[1] for row in session.execute(query)}


def _view(device: Device, alerts: Mapping[str | None, int]) -> views.DeviceView:
    return views.DeviceView.model_validate(device).model_copy(update={"alerts": alerts.get(device.uid, 0)})


def _detail(session: Session, device: Device) -> views.DeviceDetail:
    shadows = session.scalars(select(ShadowRow).where(ShadowRow.uid == device.uid)).all()
    keys = session.scalars(select(DeviceKey).where(DeviceKey.uid == device.uid).order_by(DeviceKey.id.desc()))
    ordered = sorted(shadows, key=lambda row: SHADOWS.index(row.shadow))
    return views.DeviceDetail.model_validate(device).model_copy(
        update={
            "alerts": _alerts(session, [device.uid]).get(device.uid, 0),
            "shadows": tuple(views.ShadowView.model_validate(row) for row in ordered),
            "keys": tuple(views.KeyView.model_validate(row) for row in keys),
        }
    )
