"""The list of what happened: on devices, and in the service."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy.orm import Session

from edgewise.cloud.fleet.changes import Change
from edgewise.cloud.fleet.db.tables import Device, EventRow
from edgewise.cloud.fleet.uplink import Uplink
from edgewise.wire.envelope import new_ulid
from edgewise.wire.fleet import Event, Severity

_OLDEST_S = 30 * 86_400.0


def note(
    session: Session,
    tenant: str,
    kind: str,
    severity: Severity,
    message: str,
    *,
    at: float,
    uid: str | None = None,
    facts: Mapping[str, Any] | None = None,
) -> EventRow:
    """Add one, in the transaction of what it tells of. `kind` is `thing.what`, as "device.offline"."""
    row = EventRow(
        id=new_ulid(),
        tenant_id=tenant,
        uid=uid,
        kind=kind,
        severity=severity,
        message=message,
        facts=dict(facts or {}),
        at=at,
    )
    session.add(row)
    return row


def receive(session: Session, device: Device, uplink: Uplink) -> list[Change]:
    """Handler of `up/evt`: an event of a device; its age counts back from its arrival, no clock of the device is believed."""
    event = uplink.read(Event)
    at = uplink.at - min(event.age_ms / 1000, _OLDEST_S)
    note(session, device.tenant_id, event.kind, event.severity, event.message, at=at, uid=device.uid, facts=event.facts)
    return [Change(device.tenant_id, "event", device.uid)]
