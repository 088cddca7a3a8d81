"""Keys of devices in the database: what accepting, replacing and ending one means, in the transaction of whoever does it."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from edgewise.cloud.fleet import events
from edgewise.cloud.fleet.attendance import forget_sessions
from edgewise.cloud.fleet.db.tables import Device, DeviceKey
from edgewise.cloud.fleet.enrolment.authority import Authority, read_csr
from edgewise.cloud.fleet.registry import add_device
from edgewise.core.errors import NotFound
from edgewise.wire.fleet import Severity

REVOKED = ("revoked", "replaced")
"""States whose certificates the broker must refuse."""


def activate(authority: Authority, key: DeviceKey, days: float, now: float) -> None:
    """Give a key its certificate."""
    issued = authority.device_certificate(read_csr(key.csr), key.uid, days)
    key.state, key.serial, key.certificate = "active", issued.serial, issued.pem
    key.expires_at, key.changed_at = issued.expires_at, now


def accept(session: Session, authority: Authority, key: DeviceKey, days: float, now: float) -> None:
    """Make a device of a key that waited, or give a device that is there this key in place of its others."""
    device = session.get(Device, key.uid)
    if device is None:
        name = str(key.facts.get("name", ""))
        add_device(session, key.tenant_id, key.uid, name=name, labels=key.facts.get("labels"))
    elif device.tenant_id != key.tenant_id or device.retired_at is not None:
        raise NotFound(f"There is no device {key.uid} in this fleet any more.")
    else:
        forget_sessions(device)  # a new key may come with an empty disk, which numbers its sessions from 1 again
    for other in active_keys(session, key.uid):
        end(session, other, "replaced", now)
    activate(authority, key, days, now)
    note(session, key, "key.accepted", "info", f"{key.uid} has a key.", now)


def end(session: Session, key: DeviceKey, state: str, now: float) -> None:
    """A key is "revoked" or "replaced"; whoever calls this writes the list of revoked certificates afterwards."""
    key.state, key.changed_at, key.ticket = state, now, None
    severity: Severity = "warning" if state == "revoked" else "info"
    note(session, key, f"key.{state}", severity, f"A key of {key.uid} is {state}.", now)


def active_keys(session: Session, uid: str) -> Sequence[DeviceKey]:
    return session.scalars(select(DeviceKey).where(DeviceKey.uid == uid, DeviceKey.state == "active")).all()


def revoked_serials(session: Session, now: float) -> list[tuple[str, float]]:
    """Serial and time of every certificate, of any tenant, that has not ended by itself."""
    query = select(DeviceKey.serial, DeviceKey.changed_at).where(
        DeviceKey.state.in_(REVOKED), DeviceKey.serial.is_not(None), DeviceKey.expires_at > now
    )
    query = query.order_by(DeviceKey.id)
    return [(serial, at) for serial, at in session.execute(query) if serial is not None]


def shut_out(session: Session) -> list[str]:
    """Devices, of any tenant, all of whose keys were ended."""
    active = select(DeviceKey.uid).where(DeviceKey.state == "active")
    query = select(DeviceKey.uid).where(DeviceKey.state.in_(REVOKED), DeviceKey.uid.not_in(active)).distinct()
    return list(session.scalars(query.order_by(DeviceKey.uid)))


def note(session: Session, key: DeviceKey, kind: str, severity: Severity, message: str, now: float) -> None:
    """An event that a person may review."""
    facts = {"key": key.id, "fingerprint": key.fingerprint, "address": key.facts.get("address", "")}
    events.note(session, key.tenant_id, kind, severity, message, at=now, uid=key.uid, facts=facts)
