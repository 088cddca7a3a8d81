"""The job table: durable, with leases, fencing numbers, an append-only log of chunks, and one bill for each job.

One process has it open and owns the truth in memory beside it (readers, wake-ups); `recover` is called once at its start, when no
lease of an earlier process can be alive. What may be called from elsewhere meanwhile only reads.

Times: a job's time to live counts from its receipt on the monotonic clock. A restart has no such clock in common with the
process before, so `recover` takes what is left from the wall clock, never more than the whole.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncGenerator, Callable, Iterable
from typing import TypeVar

from edgewise.cloud.jobs import endings, reading, statements
from edgewise.cloud.jobs.group import GroupCommit
from edgewise.cloud.jobs.records import Bill, Claim, Ending, Job, Lease, Queue
from edgewise.cloud.jobs.tails import Tails
from edgewise.core.clock import Clock, SystemClock
from edgewise.core.errors import EdgewiseError, EngineUnavailable, NotFound
from edgewise.core.sqlite import Database
from edgewise.wire.messages import Capability, Chunk, DiffuseWork, Final, JobRequest, Work
from edgewise.wire.stream_log import START, Place

Result = TypeVar("Result")

_MAX_BACKOFF_S = 30.0
_KEEP_JOBS_S = 30 * 86_400.0  # states and counts of single jobs
_KEEP_USAGE_S = 400 * 86_400.0
_OVERDUE = "SELECT * FROM jobs WHERE kept = 1 AND finished_at IS NOT NULL AND (acked_at <= ? OR finished_at <= ?)"
_CANCELLED = Ending(state="cancelled", finish="cancelled", error_code="cancelled", error_message="It was cancelled.")
_EXPIRED = Ending(
    state="expired",
    finish="error",
    error_code="deadline_exceeded",
    error_message="Its time to live passed before it was done.",
)


class JobTable:
    """Args:
    lease_s: A lease that is not renewed for so long is void.
    max_attempts: Attempts that may fail before the job has.
    retain_s: How long content is kept after its acknowledgement.
    unclaimed_s: How long results are kept that nobody acknowledges.
    ageing_s: Seconds in the queue for which a job counts as one class more urgent.
    """

    def __init__(
        self,
        database: Database,
        *,
        clock: Clock | None = None,
        lease_s: float = 15.0,
        max_attempts: int = 5,
        retain_s: float = 0.0,
        unclaimed_s: float = 86_400.0,
        ageing_s: float = 60.0,
    ) -> None:
        self._database = database
        self._clock = clock or SystemClock()
        self._lease_s = lease_s
        self._max_attempts = max_attempts
        self._retain_s = retain_s
        self._unclaimed_s = unclaimed_s
        self._ageing_s = ageing_s
        self._tails = Tails()
        self._log = GroupCommit(database, self._tails.written)
        self._stops: dict[Lease, Callable[[str], None]] = {}
        self._dropped = True  # content, since the write-ahead log was emptied; perhaps by a process before this one
        self.work = asyncio.Event()
        """Set whenever a job may have become claimable."""

    def __repr__(self) -> str:
        return f"JobTable({self._database!r})"

    async def recover(self) -> int:
        """Take over from a process that is gone: its leases are void. Returns how many jobs it had under way."""
        return await self._run(self._recover)

    async def close(self) -> None:
        """Write what is there; the database is closed too."""
        await self._log.stop()
        await asyncio.to_thread(self._database.close)

    # --- tenants ------------------------------------------------------------------------------------------------------------

    async def submit(
        self,
        tenant: str,
        request: JobRequest,
        model: Capability,
        *,
        admit: Callable[[sqlite3.Connection], None] = lambda _: None,
    ) -> tuple[Job, bool]:
        """The job of this request, and whether it is new: the same key of the same device is the same job, whatever it holds.

        Args:
            model: What answers it, with the prices that it will be billed at.
            admit: Called for a new job inside the transaction; raises an `EdgewiseError` to refuse it.

        Raises:
            InvalidRequest: It names a blob that is not here.
        """

        def work(db: sqlite3.Connection) -> tuple[Job, bool]:
            known = statements.by_key(db, tenant, request.device, request.key)
            if known is not None:
                return known, False
            admit(db)
            job = statements.insert(db, tenant, request, model, self._clock.time(), self._clock.monotonic())
            if isinstance(request.work, DiffuseWork):
                blobs = [blob.sha256 for blob in (request.work.image, request.work.mask) if blob is not None]
                statements.use_blobs(db, tenant, job.id, blobs, param="work")
            return job, True

        job, new = await self._run(work)
        if new:
            self.work.set()
        return job, new

    async def get(self, tenant: str, id: str) -> Job:
        """Raises `NotFound`, also for a job of another tenant."""
        return await self._run(lambda db: statements.by_id(db, tenant, id))

    async def find(self, tenant: str, device: str, key: str) -> Job:
        """The same by its idempotency key."""
        job = await self._run(lambda db: statements.by_key(db, tenant, device, key))
        if job is None:
            raise NotFound(f"There is no job with the key '{key[:80]}' here.", param="key")
        return job

    async def latest(self, limit: int) -> list[Job]:
        """Jobs of all tenants, the latest first."""
        query = "SELECT * FROM jobs ORDER BY seq DESC LIMIT ?"
        return await self._run(lambda db: [statements.job_of(row) for row in db.execute(query, (limit,))])

    async def work_of(self, id: str) -> Work | None:
        """What a job asks for; None once that was dropped."""
        row = await self._run(lambda db: db.execute("SELECT request FROM jobs WHERE id = ?", (id,)).fetchone())
        return None if row is None or row["request"] is None else JobRequest.model_validate_json(row["request"]).work

    async def check_place(self, tenant: str, id: str, after: Place) -> Job:
        """Raises what `events` would raise."""

        def work(db: sqlite3.Connection) -> Job:
            job = statements.by_id(db, tenant, id)
            reading.check_start(job, after)
            return job

        return await self._run(work)

    async def cancel(self, tenant: str, id: str) -> Job:
        """Cancel it; a running one ends within a step, an ended one stays as it is."""

        def work(db: sqlite3.Connection) -> Job:
            job = statements.by_id(db, tenant, id)
            if job.state == "queued":
                row = db.execute("SELECT * FROM jobs WHERE id = ?", (id,)).fetchone()
                return endings.end(db, row, _CANCELLED, self._clock.time())
            if job.state == "running":
                db.execute("UPDATE jobs SET cancel = 1 WHERE id = ?", (id,))
            return job

        job = await self._run(work)
        self._tails.changed(id)
        for lease, stop in self._stops.items():
            if (lease.job, lease.attempt) == (id, job.attempt):
                stop(id)
        return job

    async def ack(self, tenant: str, id: str, after: Place, *, done: bool = False) -> Job:
        """Everything before `after` has arrived and is not handed out again; with `done` the final record too, and the
        content is dropped after the time of retention.

        Raises:
            RangeNotThere: The place is behind the log's end.
        """

        def work(db: sqlite3.Connection) -> Job:
            job = statements.by_id(db, tenant, id)
            if not job.kept:
                return job
            reading.check_place(job, after)
            db.execute("UPDATE jobs SET first = max(first, ?) WHERE id = ?", (after.offset, id))
            if done and job.ended:
                db.execute("UPDATE jobs SET acked_at = coalesce(acked_at, ?) WHERE id = ?", (self._clock.time(), id))
                if self._retain_s == 0:
                    endings.drop_content(db, db.execute("SELECT * FROM jobs WHERE id = ?", (id,)).fetchall())
            return statements.by_id(db, tenant, id)

        job = await self._run(work)
        self._dropped |= not job.kept
        return job

    def events(self, tenant: str, id: str, after: Place = START) -> AsyncGenerator[Chunk | Final, None]:
        """The stream from `after` on, waiting for what comes, up to the final record.

        Raises:
            NotFound: There is no such job.
            RangeNotThere: The place is behind what the log holds.
            StreamGone: Items at the place were acknowledged, or dropped.
        """
        return reading.follow(self._database, self._tails, tenant, id, after)

    # --- workers ------------------------------------------------------------------------------------------------------------

    async def claim(self, owner: str, stop: Callable[[str], None] = lambda _: None) -> Claim | None:
        """The next job that may be worked on; None if there is none now.

        Args:
            stop: Called with the job's id when its tenant cancels it.
        """

        def work(db: sqlite3.Connection) -> Claim | None:
            now, mono = self._clock.time(), self._clock.monotonic()
            return statements.claim(db, owner, now, mono, lease_s=self._lease_s, ageing_s=self._ageing_s)

        claim = await self._run(work)
        if claim is not None:
            self._stops[claim.lease] = stop
            self._tails.changed(claim.job.id)
        return claim

    async def renew(self, leases: Iterable[Lease]) -> list[Lease]:
        """Say that the workers of these leases live; returns those that are lost."""
        held = [*leases]
        return await self._run(lambda db: statements.renew(db, held, self._clock.monotonic(), self._lease_s))

    async def append(self, lease: Lease, chunk: Chunk) -> None:
        """Add a chunk at the end of the log; on disk, and seen by readers, with the next commit.

        Raises:
            StaleFence: The lease is lost; nothing was written.
            StorageError: The disk refuses.
        """
        await self._log.append(lease, chunk)

    async def settle(self, lease: Lease) -> None:
        """Return once everything that was appended is on disk; raises as `append` does."""
        await self._log.settle(lease)

    async def finish(self, lease: Lease, ending: Ending) -> Job:
        """End the job: its last chunks, final record and bill are on disk when this returns, the last two in one commit.

        Raises:
            StaleFence: The lease is lost; nothing was written.
        """
        await self._log.settle(lease)
        return await self._end_lease(
            lease, lambda db: endings.end(db, statements.held(db, lease), ending, self._clock.time())
        )

    async def give_back(self, lease: Lease, *, busy_s: float = 0.0) -> Job:
        """End the attempt without fault; the next one goes on at the log's end."""
        return await self._retry(lease, None, busy_s, 0.0)

    async def fail(self, lease: Lease, error: EdgewiseError, *, busy_s: float = 0.0) -> Job:
        """The attempt failed. Another one follows, after a pause that grows, unless too many in a row added nothing."""
        return await self._retry(lease, error, busy_s, error.retry_after_s or 0.0)

    async def _retry(self, lease: Lease, error: EdgewiseError | None, busy_s: float, pause_s: float) -> Job:
        await self._log.flush(lease)
        job = await self._end_lease(
            lease, lambda db: self._requeue(db, statements.held(db, lease), error, busy_s, pause_s)
        )
        self.work.set()
        return job

    async def _end_lease(self, lease: Lease, work: Callable[[sqlite3.Connection], Job]) -> Job:
        try:
            return await self._run(work)
        finally:
            self.forget(lease)
            self._tails.changed(lease.job)

    def forget(self, lease: Lease) -> None:
        """Its worker is done with it, whatever became of it."""
        self._log.forget(lease)
        self._stops.pop(lease, None)

    # --- time ---------------------------------------------------------------------------------------------------------------

    async def tick(self) -> list[str]:
        """Void leases that were not renewed, end jobs whose time is over; returns the jobs concerned. Call it every second."""

        def work(db: sqlite3.Connection) -> list[str]:
            mono, now = self._clock.monotonic(), self._clock.time()
            late = db.execute("SELECT * FROM jobs WHERE state = 'queued' AND expires_mono <= ?", (mono,)).fetchall()
            for row in late:
                endings.end(db, row, _EXPIRED, now)
            void = db.execute("SELECT * FROM jobs WHERE state = 'running' AND lease_mono <= ?", (mono,)).fetchall()
            for row in void:
                self._requeue(db, row, _lost(row), 0.0, 0.0)
            return [row["id"] for row in (*late, *void)]

        changed = await self._run(work)
        for id in changed:
            self._tails.changed(id)
        self.work.set()
        return changed

    async def sweep(self) -> int:
        """Drop content whose time of retention is over, and rows of long ago; returns how many lost their content. What was
        dropped since the last sweep is gone from the write-ahead log too afterwards."""

        def work(db: sqlite3.Connection) -> int:
            now = self._clock.time()
            bounds = (now - self._retain_s, now - self._unclaimed_s)
            dropped = endings.drop_content(db, db.execute(_OVERDUE, bounds).fetchall())
            endings.forget(db, now - _KEEP_JOBS_S, now - _KEEP_USAGE_S)
            return dropped

        count = await self._run(work)
        if count or self._dropped:
            self._dropped = not await self._database.checkpoint()
        return count

    async def queues(self) -> list[Queue]:
        """What waits and runs, by class."""
        return await self._run(lambda db: statements.queues(db, self._clock.monotonic()))

    async def bills(self, since: float, tenant: str | None = None) -> list[Bill]:
        """Usage since a moment (seconds since the epoch), by tenant and model."""
        return await self._run(lambda db: endings.bills(db, since, tenant))

    def _recover(self, db: sqlite3.Connection) -> int:
        db.execute("PRAGMA secure_delete = ON")  # what is dropped is overwritten
        statements.set_clocks(db, self._clock.time(), self._clock.monotonic())
        rows = db.execute("SELECT * FROM jobs WHERE state = 'running'").fetchall()
        for row in rows:
            self._requeue(db, row, _lost(row), 0.0, 0.0)
        return len(rows)

    def _requeue(
        self, db: sqlite3.Connection, row: sqlite3.Row, error: EdgewiseError | None, busy_s: float, pause_s: float
    ) -> Job:
        """End the running attempt of a job, and the job too if it was cancelled or has failed too often."""
        now, mono = self._clock.time(), self._clock.monotonic()
        progress = statements.made_progress(db, row)
        failures = 0 if progress else row["failures"] + (error is not None)
        if row["cancel"]:
            return endings.end(db, row, _CANCELLED, now)
        if error is not None and failures >= self._max_attempts:
            return endings.end(db, row, failed(error, busy_s), now)
        pause = max(pause_s, min(2.0**failures / 10, _MAX_BACKOFF_S)) if failures else pause_s
        outcome = "given back" if error is None else error.code
        statements.requeue(db, row, now, outcome=outcome, failures=failures, busy_s=busy_s, not_before=mono + pause)
        return statements.by_id(db, row["tenant"], row["id"])

    async def _run(self, work: Callable[[sqlite3.Connection], Result]) -> Result:
        return await self._database.run(work)


def failed(error: EdgewiseError, busy_s: float = 0.0) -> Ending:
    """The end of a job that could not be done."""
    return Ending(
        state="failed",
        finish="error",
        busy_s=busy_s,
        error_code=error.code,
        error_message=error.message,
        retryable=error.retryable,
    )


def _lost(row: sqlite3.Row) -> EdgewiseError:
    return EngineUnavailable(f"The worker of attempt {row['attempt']} is gone.")
