"""Computes figures of telemetry now and then, and deletes what is no longer kept, ended commands too. Transactions are small:
others write between."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from sqlalchemy import Delete, and_, delete, select
from sqlalchemy.orm import Session

from edgewise.cloud.fleet.commands.retention import delete_ended
from edgewise.cloud.fleet.db.database import FleetDatabase
from edgewise.cloud.fleet.db.tables import Arrival, EventRow, LoginTry, RollupRow, SampleRow
from edgewise.cloud.fleet.telemetry.rollups import BATCH, HOUR, MINUTE, mark, roll_up
from edgewise.core.clock import Clock, SystemClock
from edgewise.core.errors import EdgewiseError
from edgewise.core.log import get_logger
from edgewise.core.patience import end_task
from edgewise.core.settings_fleet import FleetSettings

log = get_logger(__name__)

ROLL_UP_S, DELETE_S = 60.0, 300.0
_DAY_S = 86_400.0
_ROWS = 5000  # that one transaction deletes


class TelemetryKeeper:
    """One task."""

    def __init__(self, db: FleetDatabase, settings: FleetSettings, *, clock: Clock | None = None) -> None:
        self._db = db
        self._raw_s = settings.raw_hours * HOUR
        self._minute_s = settings.minute_days * _DAY_S
        self._hour_s = settings.hour_days * _DAY_S
        self._command_s = settings.command_days * _DAY_S
        self._clock = clock or SystemClock()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="fleet-telemetry")

    async def stop(self) -> None:
        await end_task(self._task)

    async def roll_up(self, batch: int = BATCH) -> None:
        """Count all samples that are there."""
        count = batch
        while count == batch:
            count = await self._db.write(lambda session: roll_up(session, batch))

    async def delete(self) -> None:
        """Delete all that is too old; a sample only once it is counted."""
        now = self._clock.time()
        raw, minute, hour = now - self._raw_s, now - self._minute_s, now - self._hour_s
        await self._delete_all(lambda session: _run(session, _samples(session, raw)))
        await self._delete_all(lambda session: _run(session, _rollups(MINUTE, minute)))
        await self._delete_all(lambda session: _run(session, _rollups(HOUR, hour)))
        await self._delete_all(lambda session: _run(session, _few(Arrival, Arrival.id, Arrival.until < now)))
        await self._delete_all(lambda session: _run(session, _few(LoginTry, LoginTry.digest, LoginTry.until < now)))
        await self._delete_all(lambda session: _run(session, _few(EventRow, EventRow.id, EventRow.at < hour)))
        await self._delete_all(lambda session: delete_ended(session, now - self._command_s))

    async def _delete_all(self, work: Callable[[Session], int]) -> None:
        """`work` deletes a few rows and says how many."""
        count = 1
        while count:
            count = await self._db.write(work)

    async def _run(self) -> None:
        deleted_at = self._clock.monotonic() - DELETE_S
        while True:
            try:
                await self.roll_up()
                if self._clock.monotonic() - deleted_at >= DELETE_S:
                    deleted_at = self._clock.monotonic()
                    await self.delete()
            except EdgewiseError as error:
                log.error("fleet_telemetry_waits", reason=error.message)
            except Exception:  # a fault must not let the tables grow for ever
                log.exception("fleet_telemetry_failed")
            await self._clock.sleep(ROLL_UP_S)


def _run(session: Session, statement: Delete) -> int:
    return session.connection().execute(statement).rowcount


def _samples(session: Session, before: float) -> Delete:
    return _few(SampleRow, SampleRow.id, and_(SampleRow.at < before, SampleRow.id <= mark(session)))


def _rollups(span: int, before: float) -> Delete:
    """Of a whole span at once: the index on (span, beginning) finds them; a minute of all devices is deleted at a time."""
    oldest = select(RollupRow.at).where(RollupRow.span_s == span, RollupRow.at < before - span).order_by(RollupRow.at)
    return delete(RollupRow).where(RollupRow.span_s == span, RollupRow.at == oldest.limit(1).scalar_subquery())


def _few(table: type, key: object, where: object) -> Delete:
    chosen = select(key).where(where).limit(_ROWS)  # type: ignore[call-overload]
    return delete(table).where(key.in_(chosen))  # type: ignore[attr-defined]
