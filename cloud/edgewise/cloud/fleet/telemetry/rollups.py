"""Figures of minutes and hours, from samples, in batches: each sample is counted once, whatever happens between.

Figures are sums, so samples that come late are added to the minute and hour that they belong to. How far the work has come is
a row that is written in the same transaction.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from edgewise.cloud.fleet.db.tables import Mark, RollupRow, SampleRow

MINUTE, HOUR = 60, 3600
MARK = "rollups"
BATCH = 1000
"""Samples of one transaction: other writers wait for it."""

Place = tuple[str, str, int, int]
"""(uid, name, span, beginning) of a figure."""


@dataclass(slots=True)
class Figure:
    """Of some samples of one value."""

    count: int = 0
    total: float = 0.0
    least: float = math.inf
    most: float = -math.inf

    def add(self, value: float) -> None:
        self.count += 1
        self.total += value
        self.least = min(self.least, value)
        self.most = max(self.most, value)


def mark(session: Session) -> int:
    """Id of the last sample that is counted."""
    row = session.get(Mark, MARK)
    return 0 if row is None else row.value


def figures(samples: Iterable[tuple[str, float, Mapping[str, Any]]]) -> dict[Place, Figure]:
    """Figures of samples (uid, moment, values) by minute and hour."""
    found: dict[Place, Figure] = {}
    for uid, at, values in samples:
        for span in (MINUTE, HOUR):
            begin = int(at // span) * span
            for name, value in values.items():
                found.setdefault((uid, name, span, begin), Figure()).add(float(value))
    return found


def roll_up(session: Session, batch: int = BATCH) -> int:
    """Count the next samples, in this transaction; returns how many there were."""
    row = session.get(Mark, MARK, with_for_update=True)
    if row is None:
        row = Mark(name=MARK, value=0)
        session.add(row)
    query = select(SampleRow.id, SampleRow.uid, SampleRow.at, SampleRow.values).where(SampleRow.id > row.value)
    rows = session.execute(query.order_by(SampleRow.id).limit(batch)).all()
    if rows:
        _add(session, figures((uid, at, values) for _, uid, at, values in rows))
        row.value = rows[-1][0]
    return len(rows)


def _add(session: Session, found: Mapping[Place, Figure]) -> None:
    rows: Sequence[dict[str, Any]] = [
        {
            "uid": uid,
            "name": name,
            "span_s": span,
            "at": at,
            "count": figure.count,
            "total": figure.total,
            "least": figure.least,
            "most": figure.most,
        }
        for (uid, name, span, at), figure in sorted(found.items())
    ]
    on_sqlite = session.get_bind().dialect.name == "sqlite"
    insert = sqlite.insert(RollupRow) if on_sqlite else postgresql.insert(RollupRow)
    new = insert.excluded
    least, most = (func.min, func.max) if on_sqlite else (func.least, func.greatest)
    session.execute(
        insert.on_conflict_do_update(
            index_elements=["uid", "name", "span_s", "at"],
            set_={
                "count": RollupRow.count + new.count,
                "total": RollupRow.total + new.total,
                "least": least(RollupRow.least, new.least),
                "most": most(RollupRow.most, new.most),
            },
        ),
        rows,
    )
