"""Deferred jobs in SQLite. Every step of a job is one conditional update: whoever comes second changes nothing.

A job's result and the fact that it has ended are one commit, and so are a delivery and the fact that it was made: a crash at any
point leaves the step before or the step after. What was begun and not ended is begun again by `recover`.
"""

from __future__ import annotations

import asyncio
import sqlite3
import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from edgewise.core.clock import EARLIEST_PLAUSIBLE, Clock, SystemClock, plausible
from edgewise.core.errors import (
    Cancelled,
    DeadlineExceeded,
    EngineFault,
    InvalidRequest,
    KeyReused,
    NotFound,
    QueueFull,
    StorageError,
)
from edgewise.core.sqlite import Database
from edgewise.edge.outbox.job import POLL, Job, Order
from edgewise.edge.outbox.schema import OPEN, OUTLINE, fingerprint, insert, job_of, packed, size
from edgewise.edge.outbox.shown import response_of
from edgewise.wire.messages import State

MAX_CRASHES = 5
RETRY_FULL_S = 60.0
_JUMP_S = 60.0
"""Of the wall clock against the monotonic one: less is drift, more is a clock that was set."""


@dataclass(frozen=True, slots=True)
class Counts:
    """Jobs by state, results that are still to be delivered, bytes of all, and the age of the oldest open job in seconds."""

    states: Mapping[str, int]
    undelivered: int
    bytes: int
    oldest_s: float


class Store:
    """Args:
    max_open: Jobs of one owner that have not ended; one more is refused with 429.
    total_bytes: Requests and results together; what does not fit is refused with 507. Results are never refused.

    Attributes:
        changed: Set whenever there may be work or something to deliver; whoever waits for it clears it.
    """

    def __init__(
        self, database: Database, *, max_open: int = 1000, total_bytes: int = 2**28, clock: Clock | None = None
    ) -> None:
        self._database = database
        self._max_open = max_open
        self._total_bytes = total_bytes
        self._clock = clock or SystemClock()
        self._apart = self._clock.time() - self._clock.monotonic()
        self.changed = asyncio.Event()

    def __repr__(self) -> str:
        return f"Store({self._database!r}, max_open={self._max_open}, total_bytes={self._total_bytes})"

    # --- for callers ------------------------------------------------------------------------------------------------------

    async def add(self, order: Order) -> tuple[Job, bool]:
        """The job, durable on return, and whether it is a new one: the same key of the same owner is the same job.

        Raises:
            KeyReused: The key stands for another request.
            QueueFull: Too many open jobs. StorageError: Too many bytes, or the disk refuses.
        """

        def work(connection: sqlite3.Connection) -> tuple[Job, bool, float]:
            apart = self._follow_clock(connection)
            if order.key is not None and (known := self._known(connection, order)) is not None:
                return known, False, apart
            self._check_room(connection, order)
            id = f"job_{uuid.uuid4().hex}"
            insert(connection, id, order, self._clock.time())
            return _find(connection, order.owner, id), True, apart

        job, fresh, self._apart = await self._database.run(work)
        self.changed.set()
        return job, fresh

    async def get(self, owner: str, id: str) -> Job:
        """Raises `NotFound`: there is none, or it is another owner's."""
        return await self._database.run(lambda connection: _find(connection, owner, id))

    async def of_owner(self, owner: str) -> list[Job]:
        """Oldest first, without what was asked and answered."""
        query = f"SELECT {OUTLINE} FROM jobs WHERE owner = ? ORDER BY created_at, rowid"  # noqa: S608 - constants
        return await self._select(query, owner)

    async def cancel(self, owner: str, id: str) -> Job:
        """The job as it is then: one that has ended before stays as it ended."""

        def work(connection: sqlite3.Connection) -> Job:
            job = _find(connection, owner, id)
            self._end(connection, job.id, "cancelled", response_of(Cancelled("The job was cancelled.")), OPEN)
            return _find(connection, owner, id)

        job = await self._database.run(work)
        self.changed.set()
        return job

    async def delete(self, owner: str, id: str) -> None:
        """Forget a job and its result; a result that was still to be sent is not sent any more.

        Raises:
            InvalidRequest: It has not ended.
        """

        def work(connection: sqlite3.Connection) -> None:
            job = _find(connection, owner, id)
            if not job.ended:
                raise InvalidRequest(f"The job is {job.state}: cancel it before it is deleted.", param="job_id")
            connection.execute("DELETE FROM jobs WHERE id = ?", (job.id,))

        await self._database.run(work)
        self.changed.set()

    # --- for the runner ---------------------------------------------------------------------------------------------------

    async def recover(self, *, crashed: bool = True) -> int:
        """What was running has lost its service, which `crashed` or was stopped, and waits again; returns how many. One that was
        running at `MAX_CRASHES` crashes has failed, lest it ends every service."""

        def work(connection: sqlite3.Connection) -> int:
            found = connection.execute(
                "UPDATE jobs SET state = 'queued', crashes = crashes + ?, breaks = breaks + ?, next_at = 0, "
                "waiting = 'The service was ended.' WHERE state = 'running'",
                (int(crashed), int(not crashed)),
            ).rowcount
            rows = connection.execute("SELECT id FROM jobs WHERE state = 'queued' AND crashes >= ?", (MAX_CRASHES,))
            told = response_of(EngineFault(f"The service ended {MAX_CRASHES} times while it ran."))
            for row in rows.fetchall():
                self._end(connection, row["id"], "failed", told, ("queued",))
            return found

        return await self._database.run(work)

    async def due(self, count: int, beside: Collection[str]) -> list[Job]:
        """Queued jobs whose time has come, the most urgent first, besides those that are under way."""
        query = "SELECT * FROM jobs WHERE state = 'queued' AND next_at <= ? ORDER BY urgency, created_at, rowid LIMIT ?"
        found = await self._select(query, self._clock.time(), count + len(beside))
        return [job for job in found if job.id not in beside][:count]

    async def begin(self, id: str) -> bool:
        """Whether the job is this caller's to run: it was queued, and is running now."""
        query = (
            "UPDATE jobs SET state = 'running', tries = tries + 1, started_at = coalesce(started_at, ?), waiting = NULL "
            "WHERE id = ? AND state = 'queued'"
        )
        return await self._update(query, self._clock.time(), id)

    async def postpone(self, id: str, why: str, seconds: float) -> bool:
        """A running job found no answer that may come later: try it again then."""
        query = (
            "UPDATE jobs SET state = 'queued', breaks = breaks + 1, waiting = ?, next_at = ? "
            "WHERE id = ? AND state = 'running'"
        )
        return await self._update(query, why, self._clock.time() + seconds, id)

    async def wake(self) -> None:
        """What waits for its next try, to be answered or delivered, need not wait any longer."""

        def work(connection: sqlite3.Connection) -> None:
            now = self._clock.time()
            connection.execute("UPDATE jobs SET next_at = ? WHERE state = 'queued' AND next_at > ?", (now, now))
            connection.execute("UPDATE jobs SET send_at = ? WHERE delivery = 'pending' AND send_at > ?", (now, now))

        await self._database.run(work)

    async def finish(self, id: str, state: State, response: Mapping[str, Any]) -> bool:
        """A running job has ended, durable on return; False if it had ended otherwise before, which then counts."""
        done = await self._database.run(lambda connection: self._end(connection, id, state, response, ("running",)))
        self.changed.set()
        return done

    async def expire(self) -> list[str]:
        """End jobs that are past their time; their ids."""
        now = self._clock.time()
        if not plausible(now):
            return []  # a clock that was never set says nothing about how long a job has waited
        told = response_of(DeadlineExceeded("The job was not done within its time."))

        def work(connection: sqlite3.Connection) -> tuple[list[str], float]:
            apart = self._follow_clock(connection)
            rows = connection.execute(
                f"SELECT id FROM jobs WHERE state IN {OPEN} AND expires_at <= ?",  # noqa: S608 - constants
                (now,),
            ).fetchall()
            return [row["id"] for row in rows if self._end(connection, row["id"], "expired", told, OPEN)], apart

        ended, self._apart = await self._database.run(work)
        return ended

    async def prune(self, keep_s: float) -> int:
        """Forget jobs that ended, and were delivered or given up, longer ago; returns how many."""
        now = self._clock.time()
        if not plausible(now):
            return 0
        query = "DELETE FROM jobs WHERE delivery != 'pending' AND max(ended_at, coalesce(delivered_at, ended_at)) < ?"
        return await self._database.run(lambda connection: connection.execute(query, (now - keep_s,)).rowcount)

    # --- for deliveries ---------------------------------------------------------------------------------------------------

    async def to_send(self, count: int, beside: Collection[str]) -> list[Job]:
        """Ended jobs whose result is to be sent now, the longest due first."""
        query = "SELECT * FROM jobs WHERE delivery = 'pending' AND send_at <= ? ORDER BY send_at, rowid LIMIT ?"
        found = await self._select(query, self._clock.time(), count + len(beside))
        return [job for job in found if job.id not in beside][:count]

    async def sent(self, id: str) -> bool:
        """The receiver has acknowledged the result."""
        query = (
            "UPDATE jobs SET delivery = 'delivered', sends = sends + 1, send_error = NULL, delivered_at = ? "
            "WHERE id = ? AND delivery = 'pending'"
        )
        return await self._update(query, self._clock.time(), id)

    async def not_sent(self, id: str, why: str, *, again_s: float | None) -> bool:
        """The receiver has not; None gives up."""
        query = (
            "UPDATE jobs SET delivery = ?, sends = sends + 1, send_error = ?, send_at = ?, delivered_at = NULL "
            "WHERE id = ? AND delivery = 'pending'"
        )
        state, at = ("failed", None) if again_s is None else ("pending", self._clock.time() + again_s)
        return await self._update(query, state, why, at, id)

    async def put_off(self, deliver: str, seconds: float) -> None:
        """A receiver is away: nothing is sent to it before, lest tries that wait for it hold up what is for others."""
        query = "UPDATE jobs SET send_at = ? WHERE delivery = 'pending' AND deliver = ? AND send_at < ?"
        at = self._clock.time() + seconds
        await self._update(query, at, deliver, at)

    async def next_due_s(self) -> float | None:
        """Seconds until something is due that is not due yet; None for nothing."""
        query = (
            "SELECT min(at) AS at FROM (SELECT next_at AS at FROM jobs WHERE state = 'queued' UNION ALL "
            "SELECT expires_at FROM jobs WHERE state IN ('queued', 'running') UNION ALL "
            "SELECT send_at FROM jobs WHERE delivery = 'pending') WHERE at > ?"
        )
        now = self._clock.time()
        at = await self._database.run(lambda connection: connection.execute(query, (now,)).fetchone()["at"])
        return None if at is None else float(at - now)

    async def counts(self) -> Counts:
        """Of all owners, for metrics."""
        total = (
            "SELECT coalesce(sum(bytes), 0) AS bytes, coalesce(sum(delivery = 'pending'), 0) AS undelivered, "
            "min(CASE WHEN state IN ('queued', 'running') THEN created_at END) AS oldest FROM jobs"
        )

        def work(connection: sqlite3.Connection) -> Counts:
            rows = connection.execute("SELECT state, count(*) AS count FROM jobs GROUP BY state").fetchall()
            found = connection.execute(total).fetchone()
            oldest_s = 0.0 if found["oldest"] is None else max(0.0, self._clock.time() - found["oldest"])
            states = {row["state"]: row["count"] for row in rows}
            return Counts(states, found["undelivered"], found["bytes"], oldest_s)

        return await self._database.run(work)

    # --- inside a transaction ---------------------------------------------------------------------------------------------

    def _follow_clock(self, connection: sqlite3.Connection) -> float:
        """Move the times of what waits with a clock that was set, so that it ends nothing too early and lets nothing wait for
        years; how far the wall clock is from the monotonic one now, to be kept once this is committed."""
        now = self._clock.time()
        apart = now - self._clock.monotonic()
        jump = apart - self._apart
        if not plausible(now):
            return self._apart
        if abs(jump) > _JUMP_S and plausible(now - jump):
            move = f"created_at = created_at + :by, expires_at = expires_at + :by, next_at = next_at + :by WHERE state IN {OPEN}"
            connection.execute(f"UPDATE jobs SET {move}", {"by": jump})  # noqa: S608 - constants
            connection.execute("UPDATE jobs SET send_at = send_at + ? WHERE delivery = 'pending'", (jump,))
        # Taken while the clock was not set, or by one that was ahead and was set back while the service did not run:
        connection.execute(
            "UPDATE jobs SET expires_at = expires_at - created_at + :now, created_at = :now, next_at = 0 "  # noqa: S608
            f"WHERE state IN {OPEN} AND (created_at < :first OR created_at > :now + :drift)",
            {"now": now, "first": EARLIEST_PLAUSIBLE.timestamp(), "drift": _JUMP_S},
        )
        return apart

    def _known(self, connection: sqlite3.Connection, order: Order) -> Job | None:
        row = connection.execute("SELECT * FROM jobs WHERE owner = ? AND key = ?", (order.owner, order.key)).fetchone()
        if row is None:
            return None
        if row["fingerprint"] != fingerprint(order):
            raise KeyReused(
                f"The key '{order.key}' stands for another request, of job {row['id']}: draw a new key for a new request.",
                param="key",
            )
        return job_of(row)

    def _check_room(self, connection: sqlite3.Connection, order: Order) -> None:
        count = connection.execute(
            f"SELECT count(*) AS count FROM jobs WHERE owner = ? AND state IN {OPEN}",  # noqa: S608 - constants
            (order.owner,),
        ).fetchone()["count"]
        if count >= self._max_open:
            raise QueueFull(
                f"{count} jobs are open, which is this device's limit (outbox.max_open): wait for one, or cancel it.",
                retry_after_s=RETRY_FULL_S,
            )
        held = connection.execute("SELECT coalesce(sum(bytes), 0) AS bytes FROM jobs").fetchone()["bytes"]
        wanted = size(packed(order.body))
        if held + wanted > self._total_bytes:
            raise StorageError(
                f"The outbox holds {held} bytes, and {wanted} more do not fit (outbox.total_bytes: {self._total_bytes}): "
                "fetch and delete results that are done."
            )

    def _end(
        self, connection: sqlite3.Connection, id: str, state: State, response: Mapping[str, Any], before: Sequence[str]
    ) -> bool:
        """End a job that is in one of the one or two states `before`; its prompt goes, its result is to be delivered."""
        now, text = self._clock.time(), packed(response)
        query = (
            "UPDATE jobs SET state = ?, response = ?, bytes = ?, body = NULL, waiting = NULL, ended_at = ?, send_at = ?, "
            "delivery = CASE deliver WHEN ? THEN 'none' ELSE 'pending' END WHERE id = ? AND state IN (?, ?)"
        )
        values = (state, text, size(text), now, now, POLL, id, before[0], before[-1])
        return connection.execute(query, values).rowcount == 1

    async def _select(self, query: str, *values: Any) -> list[Job]:
        return await self._database.run(lambda connection: [job_of(row) for row in connection.execute(query, values)])

    async def _update(self, query: str, *values: Any) -> bool:
        return await self._database.run(lambda connection: connection.execute(query, values).rowcount > 0)


def _find(connection: sqlite3.Connection, owner: str, id: str) -> Job:
    row = connection.execute("SELECT * FROM jobs WHERE id = ? AND owner = ?", (id, owner)).fetchone()
    if row is None:
        raise NotFound(f"There is no job '{id[:80]}'.", param="job_id")
    return job_of(row)
