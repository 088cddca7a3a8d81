"""Telemetry as people and programs read it; implements `fleet.services.Telemetry`."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from edgewise.cloud.fleet import views
from edgewise.cloud.fleet.actor import Actor
from edgewise.cloud.fleet.db.database import FleetDatabase
from edgewise.cloud.fleet.db.tables import RollupRow, SampleRow
from edgewise.cloud.fleet.ingest import Ingest
from edgewise.cloud.fleet.owned import find_device
from edgewise.cloud.fleet.telemetry.rollups import HOUR, MINUTE, Figure, mark
from edgewise.cloud.fleet.telemetry.samples import names_of, receive_telemetry
from edgewise.core.clock import Clock, SystemClock
from edgewise.core.errors import InvalidRequest
from edgewise.core.settings_fleet import FleetSettings

MOST_POINTS = 400
"""What a chart can show: without a span, the finest one that gives no more."""
_LIMIT = 20_000
SPANS = (0, MINUTE, HOUR)


class TelemetryStore:
    def __init__(self, db: FleetDatabase, settings: FleetSettings, *, clock: Clock | None = None) -> None:
        self._db = db
        self._raw_s = settings.raw_hours * HOUR
        self._minute_s = settings.minute_days * 86_400
        self._clock = clock or SystemClock()

    def register(self, ingest: Ingest) -> None:
        ingest.on("tel", receive_telemetry)

    async def series(
        self, actor: Actor, uid: str, name: str, *, since: float, until: float | None = None, span_s: int | None = None
    ) -> views.SeriesView:
        """Points of a value in [since, until), the oldest first. `span_s` 0 is single samples, 60 minutes, 3600 hours.

        Raises:
            InvalidRequest: Another span, or more points than one answer has.
        """
        end = self._clock.time() + 1.0 if until is None else until
        if span_s is not None and span_s not in SPANS:
            raise InvalidRequest(f"span_s: {span_s} is not kept; 0, {MINUTE} and {HOUR} are.", param="span_s")
        if end < since:
            raise InvalidRequest("until: it is before 'since'.", param="until")

        def work(session: Session) -> views.SeriesView:
            find_device(session, actor, uid)
            span = self._span(session, uid, since, end) if span_s is None else span_s
            points = (
                _single(session, uid, name, since, end) if span == 0 else _figures(session, uid, name, span, since, end)
            )
            if len(points) > _LIMIT:
                raise InvalidRequest(f"More than {_LIMIT} points: ask for less time, or a longer span.", param="since")
            return views.SeriesView(uid=uid, name=name, span_s=span, points=tuple(points))

        return await self._db.read(work)

    async def names(self, actor: Actor, uid: str) -> Sequence[str]:
        """Names of the values that a device has ever sent."""
        return await self._db.read(lambda session: sorted(names_of(find_device(session, actor, uid))))

    def _span(self, session: Session, uid: str, since: float, end: float) -> int:
        """The finest that is kept for so long and gives few enough points."""
        now = self._clock.time()
        if since >= now - self._raw_s:
            query = select(SampleRow.id).where(SampleRow.uid == uid, SampleRow.at >= since, SampleRow.at < end)
            if len(session.scalars(query.limit(MOST_POINTS + 1)).all()) <= MOST_POINTS:
                return 0
        if since >= now - self._minute_s and (end - since) / MINUTE <= MOST_POINTS:
            return MINUTE
        return HOUR


def _single(session: Session, uid: str, name: str, since: float, end: float) -> list[views.PointView]:
    value = SampleRow.values[name].as_float()
    query = select(SampleRow.at, value).where(SampleRow.uid == uid, SampleRow.at >= since, SampleRow.at < end)
    rows = session.execute(query.where(value.is_not(None)).order_by(SampleRow.at).limit(_LIMIT + 1))
    return [views.PointView(at=at, mean=one, least=one, most=one) for at, one in rows]


def _figures(session: Session, uid: str, name: str, span: int, since: float, end: float) -> list[views.PointView]:
    """Those that are computed, and on top of them the samples that are not counted yet."""
    query = select(RollupRow).where(
        RollupRow.uid == uid,
        RollupRow.name == name,
        RollupRow.span_s == span,
        RollupRow.at > since - span,
        RollupRow.at < end,
    )
    found = {
        row.at: Figure(row.count, row.total, row.least, row.most)
        for row in session.scalars(query.order_by(RollupRow.at).limit(_LIMIT + 1))
    }
    value = SampleRow.values[name].as_float()
    fresh = select(SampleRow.at, value).where(SampleRow.id > mark(session), SampleRow.uid == uid, value.is_not(None))
    for at, one in session.execute(fresh.where(SampleRow.at >= since, SampleRow.at < end)):
        found.setdefault(int(at // span) * span, Figure()).add(one)
    return [
        views.PointView(at=at, mean=figure.total / figure.count, least=figure.least, most=figure.most)
        for at, figure in sorted(found.items())
    ]
