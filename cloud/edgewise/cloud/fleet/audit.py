"""The audit log: what everybody did, in a chain. A row that is changed, removed or put between others breaks it.

Each digest is SHA-256 over the digest before it and the canonical JSON of the row (keys sorted, no spaces). Rows of one tenant
are numbered from 1 without a gap; the unique key lets two writers never have the same number.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from edgewise.cloud.fleet.actor import Actor
from edgewise.cloud.fleet.db.tables import AuditRow, Tenant

FIRST = bytes(32)


def record(
    session: Session,
    actor: Actor,
    action: str,
    target: str = "",
    *,
    before: Mapping[str, Any] | None = None,
    after: Mapping[str, Any] | None = None,
) -> AuditRow:
    """Add a line in the transaction that does what it says; `action` is `thing.verb`, as "device.edit". No secrets."""
    session.scalars(
        select(Tenant.id).where(Tenant.id == actor.tenant).with_for_update(key_share=True)
    )  # one writer of a chain at a time
    last = session.scalars(
        select(AuditRow).where(AuditRow.tenant_id == actor.tenant).order_by(AuditRow.number.desc()).limit(1)
    ).first()
    row = AuditRow(
        tenant_id=actor.tenant,
        number=1 if last is None else last.number + 1,
        at=round(time.time(), 3),
        actor=actor.name,
        via=actor.via,
        action=action,
        target=target,
        before=None if before is None else dict(before),
        after=None if after is None else dict(after),
    )
    row.digest = digest(row, FIRST if last is None else last.digest)
    session.add(row)
    session.flush()
    return row


def digest(row: AuditRow, before: bytes) -> bytes:
    """Of a row that follows one with the digest `before`."""
    names = ("tenant_id", "number", "at", "actor", "via", "action", "target", "before", "after")
    text = json.dumps({name: getattr(row, name) for name in names}, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(before + text.encode()).digest()
