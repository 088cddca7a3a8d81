"""Plans and receipts in SQLite, searchable and for a limited time: numbers, names and reasons, never a prompt or an answer.

A plan that was chosen among places is on disk before anything is sent: it holds what was predicted. The receipt joins it when the
request has ended, a moment later and together with others, so that no answer waits for a disk. Every question to the store
sees all that it was told before.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from edgewise.core.clock import Clock, SystemClock
from edgewise.core.errors import EdgewiseError, NotFound
from edgewise.core.log import get_logger
from edgewise.core.patience import end_task
from edgewise.core.sqlite import Database
from edgewise.engine.request import RequestStats
from edgewise.pipeline.plan import Errand, Plan
from edgewise.pipeline.receipts import PLACES_JOINED, Costs, place_of, predicted_s, show_plan

log = get_logger(__name__)

DAY_S = 86_400.0
MAX_FOUND = 1000
_DELAY_S = 0.5  # receipts of this time are one commit
_PRUNE_S = 3600.0

_MAX_PENDING = 2000  # beyond that a disk that refuses costs the oldest

_ABANDONED = "UPDATE receipts SET fault = 'interrupted' WHERE receipt IS NULL AND fault IS NULL"
_TRIED_BEFORE = "UPDATE receipts SET id = id || '/before/' || rowid WHERE id = :id"
_PLANNED = """
INSERT INTO receipts (id, at, key, model, place, predicted_s, bytes, price, plan)
VALUES (:id, :at, :key, :model, :place, :predicted_s, :bytes, :price, :plan)
"""
_ENDED = """
INSERT INTO receipts (id, at, key, model, place, predicted_s, real_s, bytes, price, plan, receipt, fault, lesson)
VALUES (:id, :at, :key, :model, :place, :predicted_s, :real_s, :bytes, :price, :plan, :receipt, :fault, :lesson)
ON CONFLICT (id) DO UPDATE SET place = excluded.place, real_s = excluded.real_s, bytes = excluded.bytes,
    price = excluded.price, receipt = excluded.receipt, fault = excluded.fault, lesson = excluded.lesson
"""
_LESSONS = """
SELECT lesson FROM (
    SELECT lesson, at, number, row_number() OVER (PARTITION BY model, place ORDER BY at DESC, number DESC) AS age
    FROM (SELECT lesson, at, model, place, rowid AS number FROM receipts ORDER BY at DESC LIMIT ?)
    WHERE lesson IS NOT NULL
) WHERE age <= ? ORDER BY at, number
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a request ended, for the store and for whoever learns from it.

    Attributes:
        receipt: As it was told.
        stats: Of each answer, as far as the engines gave an account; of a picture, decoding is all of its steps.
        first_s, total_s: Seconds from the plan to the first and the last item; `first_s` is None where none came.
        fault: Code of the error or "cancelled"; None for a whole answer.
    """

    errand: Errand
    model: str
    plan: Plan
    receipt: Mapping[str, Any]
    costs: Costs
    stats: tuple[RequestStats | None, ...]
    first_s: float | None
    total_s: float
    fault: str | None = None

    @property
    def place(self) -> str:
        """Where the answers were made, as `receipts.place_of` tells it."""
        return place_of(_planned_place(self.plan), self.stats)


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """What is looked for; None matches all. `since` and `until` are seconds since the Unix epoch; `request` is an id, with
    which the parts of its pipeline are found too."""

    request: str | None = None
    model: str | None = None
    where: str | None = None
    key: str | None = None
    since: float | None = None
    until: float | None = None
    limit: int = 100


@dataclass(frozen=True, slots=True)
class Spent:
    """Bytes over the link and money, of requests that ended and, as cautiously predicted, of those that run."""

    bytes: int = 0
    price: float = 0.0


class ReceiptStore:
    """Args:
    keep_s: Age at which plans and receipts are dropped; those of the last day are kept for the budgets in any case.

    Attributes:
        learner: Is told of every end; the note that it makes of it is kept beside the receipt, and `lessons` gives it back.
    """

    def __init__(self, database: Database, *, keep_s: float = 30 * DAY_S, clock: Clock | None = None) -> None:
        self._database = database
        self._keep_s = max(keep_s, DAY_S)
        self._clock = clock or SystemClock()
        self._pending: list[dict[str, Any]] = []
        self._writing: asyncio.Task[None] | None = None
        self._prune_at = 0.0
        self._fresh = True
        self.learner: Callable[[Outcome], str | None] | None = None

    def __repr__(self) -> str:
        return f"ReceiptStore({self._database!r}, pending={len(self._pending)})"

    async def planned(self, errand: Errand, model: str, plan: Plan) -> None:
        """Keep a plan; durable on return. Where a request is tried again, as a deferred job may be, the earlier try is kept under
        an id of its own, for it was paid too."""
        if any(row["id"] == errand.id for row in self._pending):
            await self.flush()
        row = self._row(errand, model, plan)
        chosen = [decision.predicted for decision in plan.decisions if decision.predicted is not None]
        row |= {
            "bytes": sum(one.most_bytes for one in chosen),
            "price": sum(one.most_price for one in chosen),
        }

        def work(connection: sqlite3.Connection) -> None:
            self._tidy(connection)
            connection.execute(_TRIED_BEFORE, row)
            connection.execute(_PLANNED, row)

        await self._database.run(work)

    def ended(self, outcome: Outcome) -> None:
        """Keep a receipt, soon; tell the learner now."""
        costs = outcome.costs
        self._pending.append(
            self._row(outcome.errand, outcome.model, outcome.plan)
            | {
                "place": outcome.place,
                "real_s": outcome.total_s if outcome.fault is None else None,
                "bytes": costs.up_bytes + costs.down_bytes,
                "price": costs.price,
                "receipt": json.dumps(outcome.receipt),
                "fault": outcome.fault,
                "lesson": None if self.learner is None else self.learner(outcome),
            }
        )
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write_soon(), name="receipts")

    async def flush(self) -> None:
        """Everything that ended is on disk when this returns."""
        rows, self._pending = self._pending, []
        prune = self._clock.monotonic() >= self._prune_at
        if not rows and not prune:
            return

        def work(connection: sqlite3.Connection) -> None:
            self._tidy(connection)
            connection.executemany(_ENDED, rows)
            if prune:
                connection.execute("DELETE FROM receipts WHERE at < ?", (self._clock.time() - self._keep_s,))

        try:
            await self._database.run(work)
        except BaseException:
            self._pending = (rows + self._pending)[-_MAX_PENDING:]
            raise
        if prune:
            self._prune_at = self._clock.monotonic() + _PRUNE_S

    async def get(self, id: str) -> dict[str, Any]:
        """Raises `NotFound`: there is no such request, or it was dropped by age."""
        await self.flush()
        rows = await self._database.run(
            lambda connection: connection.execute("SELECT * FROM receipts WHERE id = ?", (id,)).fetchall()
        )
        if not rows:
            raise NotFound(
                f"There is no receipt '{id[:80]}': the request is unknown, or older than placement.keep_days. "
                "Those of a pipeline's parts are found by its id: ?request=ID, or `edgewise receipts --of ID`.",
                param="id",
            )
        return _shown(rows[0])

    async def find(self, query: Query) -> list[dict[str, Any]]:
        """The latest first. A place matches where any part of an answer was made there."""
        await self.flush()
        limits = {
            "instr(id || '/', ? || '/') = 1": query.request,
            "model = ?": query.model,
            "instr('+' || place || '+', '+' || ? || '+') > 0": query.where,
            "key = ?": query.key,
            "at >= ?": query.since,
            "at < ?": query.until,
        }
        used = {text: value for text, value in limits.items() if value is not None}
        where = " AND ".join(used) or "1"
        text = f"SELECT * FROM receipts WHERE {where} ORDER BY at DESC, rowid DESC LIMIT ?"  # noqa: S608 - our own words
        values = (*used.values(), min(query.limit, MAX_FOUND))
        rows = await self._database.run(lambda connection: connection.execute(text, values).fetchall())
        return [_shown(row) for row in rows]

    async def spent(self, since: float) -> Spent:
        """What requests since a moment (seconds since the epoch) have cost, but those that a peer of the site answered."""
        await self.flush()
        query = "SELECT total(bytes) AS bytes, total(price) AS price FROM receipts WHERE at >= ? AND instr(place, 'peer') = 0"
        row = await self._database.run(lambda connection: connection.execute(query, (since,)).fetchone())
        return Spent(int(row["bytes"]), float(row["price"]))

    async def lessons(self, each: int, among: int) -> list[str]:
        """The learner's notes, the oldest first: of the newest `among` requests, `each` of every model at every place."""
        rows = await self._database.run(lambda connection: connection.execute(_LESSONS, (among, each)).fetchall())
        return [row["lesson"] for row in rows]

    async def aclose(self) -> None:
        """Write what is left; called before the database is closed."""
        await end_task(self._writing)
        await self._write()

    async def _write_soon(self) -> None:
        await asyncio.sleep(_DELAY_S)
        await self._write()

    async def _write(self) -> None:
        """A disk that refuses costs the receipts, not the service; they are tried again with the next ones."""
        try:
            await self.flush()
        except EdgewiseError as error:
            log.warning("receipts_wait", count=len(self._pending), reason=error.message)

    def _tidy(self, connection: sqlite3.Connection) -> None:
        """What was running when the service ended, ended with it."""
        if self._fresh:
            connection.execute(_ABANDONED)
            self._fresh = False

    def _row(self, errand: Errand, model: str, plan: Plan) -> dict[str, Any]:
        return {
            "id": errand.id,
            "at": self._clock.time(),
            "key": errand.key,
            "model": model,
            "place": _planned_place(plan),
            "predicted_s": predicted_s(plan),
            "plan": json.dumps(show_plan(plan)),
        }


def _planned_place(plan: Plan) -> str:
    return PLACES_JOINED.join(dict.fromkeys(decision.where for decision in plan.decisions))


def _shown(row: Any) -> dict[str, Any]:
    predicted, real = row["predicted_s"], row["real_s"]
    return {
        "id": row["id"],
        "at": round(row["at"], 3),
        "key": row["key"],
        "model": row["model"],
        "where": row["place"],
        "state": row["fault"] or ("running" if row["receipt"] is None else "done"),
        "predicted_ms": None if predicted is None else round(predicted * 1000, 3),
        "real_ms": None if real is None else round(real * 1000, 3),
        "error": None if predicted is None or not real else round(abs(predicted - real) / real, 4),
        "bytes": row["bytes"],
        "price": row["price"],
        "plan": json.loads(row["plan"]),
        "receipt": None if row["receipt"] is None else json.loads(row["receipt"]),
    }
