"""The audit log as people read it; implements `fleet.services.Audit`. Lines are written by `audit.record`."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from edgewise.cloud.fleet import views
from edgewise.cloud.fleet.actor import Actor
from edgewise.cloud.fleet.audit import FIRST, digest
from edgewise.cloud.fleet.db.database import FleetDatabase
from edgewise.cloud.fleet.db.tables import AuditRow
from edgewise.cloud.fleet.pages import check_limit
from edgewise.core.errors import InvalidRequest

_BATCH = 1000


class AuditService:
    def __init__(self, db: FleetDatabase) -> None:
        self._db = db

    async def entries(
        self, actor: Actor, *, target: str | None = None, limit: int = 100, after: str | None = None
    ) -> views.Page[views.AuditView]:
        """The latest first; `after` is the number of the last one that was seen."""
        check_limit(limit)
        where = [AuditRow.tenant_id == actor.tenant]
        if target is not None:
            where.append(AuditRow.target == target)
        further = [*where, AuditRow.number < _number(after)] if after is not None else where

        def work(session: Session) -> views.Page[views.AuditView]:
            total = session.scalar(select(func.count()).select_from(AuditRow).where(*where)) or 0
            query = select(AuditRow).where(*further).order_by(AuditRow.number.desc()).limit(limit + 1)
            rows = session.scalars(query).all()
            items = tuple(views.AuditView.model_validate(row) for row in rows[:limit])
            return views.Page(items=items, total=total, after=str(items[-1].number) if len(rows) > limit else None)

        return await self._db.read(work)

    async def verify(self, actor: Actor) -> str | None:
        """None if the chain is whole, else what is wrong and where. That the last lines were cut off, a copy of the last digest
        that is kept elsewhere tells (`head`)."""
        actor.need("admin")
        number, before = 0, FIRST
        while True:
            rows = await self._db.read(lambda session, first=number: _next(session, actor, first))  # type: ignore[misc]
            for row in rows:
                if row.number != number + 1:
                    return f"Line {number + 1} is missing: after {number} comes {row.number}."
                if row.digest != digest(row, before):
                    return f"Line {row.number} was changed after it was written, or one before it was put in another's place."
                number, before = row.number, row.digest
            if len(rows) < _BATCH:
                return None

    async def head(self, actor: Actor) -> tuple[int, str]:
        """(number, digest in hex) of the last line: kept elsewhere, it proves later that no line was cut off."""
        actor.need("admin")
        query = select(AuditRow).where(AuditRow.tenant_id == actor.tenant).order_by(AuditRow.number.desc()).limit(1)
        row = await self._db.read(lambda session: session.scalars(query).first())
        return (0, FIRST.hex()) if row is None else (row.number, row.digest.hex())

    async def export(self, actor: Actor) -> AsyncIterator[str]:
        """Every line as JSON with its digest, the first first: `digest` of `fleet/audit.py` can be computed from it again."""
        actor.need("admin")
        number = 0
        while True:
            rows = await self._db.read(lambda session, first=number: _next(session, actor, first))  # type: ignore[misc]
            for row in rows:
                names = ("tenant_id", "number", "at", "actor", "via", "action", "target", "before", "after")
                line = {name: getattr(row, name) for name in names} | {"digest": row.digest.hex()}
                yield json.dumps(line, sort_keys=True)
                number = row.number
            if len(rows) < _BATCH:
                return


def _next(session: Session, actor: Actor, after: int) -> list[AuditRow]:
    query = select(AuditRow).where(AuditRow.tenant_id == actor.tenant, AuditRow.number > after)
    return list(session.scalars(query.order_by(AuditRow.number).limit(_BATCH)))


def _number(after: str) -> int:
    if not (after.isascii() and after.isdecimal() and len(after) < 10):
        raise InvalidRequest("'after' is no number of a line of the audit log.", param="after")
    return int(after)
