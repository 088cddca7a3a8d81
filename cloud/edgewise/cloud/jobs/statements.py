"""What the job table does inside one transaction: functions on a connection, each a step from one allowed state to another."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Sequence
from typing import TypeAlias
from uuid import uuid4

from edgewise.cloud.jobs.records import Claim, Job, Lease, Queue
from edgewise.cloud.jobs.reserve import most_of
from edgewise.core.errors import InvalidRequest, NotFound, StaleFence
from edgewise.core.priority import Priority, priority_of
from edgewise.wire.messages import Capability, Chunk, Final, GenerateWork, JobRequest

Entry: TypeAlias = tuple[int, Chunk]
"""A chunk with its number in the log of its job, from 1 without gaps."""

_INSERT = """
INSERT INTO jobs (
    id, tenant, device, key, model, kind, prompt_tokens, price_in, price_out, priority, state, request, base, first, count,
    received_at, queued_mono, expires_at, expires_mono, most_tokens, most_seconds, most_price
) VALUES (
    :id, :tenant, :device, :key, :model, :kind, :prompt_tokens, :price_in, :price_out, :priority, 'queued', :request, :base,
    :base, :base, :now, :mono, :now + :ttl_s, :mono + :ttl_s, :most_tokens, :most_seconds, :most_price
)
"""


# --- in --------------------------------------------------------------------------------------------------------------------


def insert(db: sqlite3.Connection, tenant: str, request: JobRequest, model: Capability, now: float, mono: float) -> Job:
    """A new job, queued. The caller has looked that its key is new."""
    work = request.work
    most = most_of(work, model)
    values = {
        "id": f"job_{uuid4().hex}",
        "tenant": tenant,
        "device": request.device,
        "key": request.key,
        "model": model.model,
        "kind": work.kind,
        "prompt_tokens": len(work.prompt) if isinstance(work, GenerateWork) else 0,
        "price_in": model.price_in,
        "price_out": model.price_out,
        "priority": priority_of(request.priority),
        "request": request.model_dump_json(exclude_none=True),
        "base": len(work.output) if isinstance(work, GenerateWork) else 0,
        "now": now,
        "mono": mono,
        "ttl_s": None if request.ttl_ms is None else request.ttl_ms / 1000,
        "most_tokens": most.tokens,
        "most_seconds": most.seconds,
        "most_price": most.price,
    }
    db.execute(_INSERT, values)
    return by_id(db, tenant, str(values["id"]))


def use_blobs(
    db: sqlite3.Connection, tenant: str, job: str, hashes: Iterable[str], *, param: str | None = None
) -> None:
    """Keep blobs as long as the job is kept.

    Raises:
        InvalidRequest: One of them is not here.
    """
    for sha256 in hashes:
        if not db.execute("SELECT 1 FROM blobs WHERE tenant = ? AND sha256 = ?", (tenant, sha256)).fetchone():
            raise InvalidRequest(
                f"The blob {sha256} is not here: PUT it to /edgewise/v1/blobs/{sha256} first.", param=param
            )
        db.execute("INSERT OR IGNORE INTO blob_uses VALUES (?, ?, ?)", (job, tenant, sha256))
        db.execute("UPDATE blobs SET expires_at = NULL WHERE tenant = ? AND sha256 = ?", (tenant, sha256))


# --- look ------------------------------------------------------------------------------------------------------------------


def by_id(db: sqlite3.Connection, tenant: str, id: str) -> Job:
    """Raises `NotFound`, also for a job of another tenant."""
    row = db.execute("SELECT * FROM jobs WHERE id = ? AND tenant = ?", (id, tenant)).fetchone()
    if row is None:
        raise NotFound(f"There is no job '{id[:80]}' here.", param="id")
    return job_of(row)


def by_key(db: sqlite3.Connection, tenant: str, device: str, key: str) -> Job | None:
    query = "SELECT * FROM jobs WHERE tenant = ? AND device = ? AND key = ?"
    row = db.execute(query, (tenant, device, key)).fetchone()
    return None if row is None else job_of(row)


def job_of(row: sqlite3.Row) -> Job:
    final = row["final"]
    return Job(
        id=row["id"],
        tenant=row["tenant"],
        device=row["device"],
        key=row["key"],
        model=row["model"],
        kind=row["kind"],
        priority=Priority(row["priority"]),
        state=row["state"],
        base=row["base"],
        first=row["first"],
        count=row["count"],
        attempt=row["attempt"],
        failures=row["failures"],
        received_at=row["received_at"],
        finished_at=row["finished_at"],
        kept=bool(row["kept"]),
        final=None if final is None else Final.model_validate_json(final),
    )


def number_before(db: sqlite3.Connection, id: str, offset: int) -> int:
    """Number of the last chunk that ends at or below `offset`; 0 if there is none."""
    query = "SELECT coalesce(max(seq), 0) FROM chunks WHERE job = ? AND stop <= ?"
    return int(db.execute(query, (id, offset)).fetchone()[0])


def entries_after(db: sqlite3.Connection, id: str, seq: int, limit: int) -> list[Entry]:
    """The chunks that follow number `seq`."""
    query = "SELECT seq, body FROM chunks WHERE job = ? AND seq > ? ORDER BY seq LIMIT ?"
    rows = db.execute(query, (id, seq, limit))
    return [(row["seq"], Chunk.model_validate_json(row["body"])) for row in rows]


def content(db: sqlite3.Connection, job: str, request: str) -> tuple[tuple[int, ...], str]:
    """Tokens and text of the whole stream so far."""
    tokens = [*json.loads(request)["work"].get("output", ())]
    texts: list[str] = []
    for row in db.execute("SELECT body FROM chunks WHERE job = ? ORDER BY seq", (job,)):
        body = json.loads(row["body"])
        tokens += body.get("tokens") or ()
        texts.append(body.get("text") or "")
    return tuple(tokens), "".join(texts)


# --- work ------------------------------------------------------------------------------------------------------------------

_NEXT = """
SELECT * FROM jobs AS job WHERE state = 'queued' AND not_before_mono <= :mono
ORDER BY
    min(priority, max(:interactive, priority - CAST((:mono - queued_mono) / :ageing_s AS INTEGER))),
    (SELECT count(*) FROM jobs AS other WHERE other.state = 'running' AND other.tenant = job.tenant),
    seq
LIMIT 1
"""


def claim(
    db: sqlite3.Connection, owner: str, now: float, mono: float, *, lease_s: float, ageing_s: float
) -> Claim | None:
    """Take the next job: the most urgent class, in it the tenant with the fewest running jobs, of that the oldest."""
    bounds = {"mono": mono, "interactive": Priority.INTERACTIVE, "ageing_s": ageing_s}
    row = db.execute(_NEXT, bounds).fetchone()
    if row is None:
        return None
    db.execute(
        "UPDATE jobs SET state = 'running', attempt = attempt + 1, owner = ?, lease_mono = ? WHERE seq = ?",
        (owner, mono + lease_s, row["seq"]),
    )
    job = by_id(db, row["tenant"], row["id"])
    db.execute(
        "INSERT INTO attempts (job, attempt, owner, began_at, began_offset) VALUES (?, ?, ?, ?, ?)",
        (job.id, job.attempt, owner, now, job.count),
    )
    tokens, text = content(db, job.id, row["request"])
    expires = row["expires_mono"]
    return Claim(
        job=job,
        request=JobRequest.model_validate_json(row["request"]),
        lease=Lease(job=job.id, attempt=job.attempt, owner=owner),
        tokens=tokens,
        text=text,
        deadline_s=None if expires is None else max(0.0, expires - mono),
    )


def renew(db: sqlite3.Connection, leases: Iterable[Lease], mono: float, lease_s: float) -> list[Lease]:
    """Move the deadlines; returns the leases that are lost."""
    query = "UPDATE jobs SET lease_mono = ? WHERE id = ? AND attempt = ? AND state = 'running'"
    return [lease for lease in leases if not db.execute(query, (mono + lease_s, lease.job, lease.attempt)).rowcount]


def append(db: sqlite3.Connection, lease: Lease, chunks: Sequence[Chunk]) -> list[Entry]:
    """Write chunks at the end of the log; nothing if the lease is lost, or they do not begin where the log ends."""
    start, stop = chunks[0].offset, chunks[-1].offset + chunks[-1].count
    query = "UPDATE jobs SET count = ? WHERE id = ? AND attempt = ? AND state = 'running' AND count = ?"
    if not db.execute(query, (stop, lease.job, lease.attempt, start)).rowcount:
        return []
    previews = [chunk.preview.sha256 for chunk in chunks if chunk.preview is not None]
    if previews:
        tenant = db.execute("SELECT tenant FROM jobs WHERE id = ?", (lease.job,)).fetchone()["tenant"]
        use_blobs(db, tenant, lease.job, previews)
    last = int(db.execute("SELECT coalesce(max(seq), 0) FROM chunks WHERE job = ?", (lease.job,)).fetchone()[0])
    entries = [*enumerate(chunks, last + 1)]
    db.executemany(
        "INSERT INTO chunks VALUES (?, ?, ?, ?, ?)",
        [
            (lease.job, seq, chunk.offset, chunk.offset + chunk.count, chunk.model_dump_json(exclude_none=True))
            for seq, chunk in entries
        ],
    )
    return entries


def held(db: sqlite3.Connection, lease: Lease) -> sqlite3.Row:
    """The job's row.

    Raises:
        StaleFence: The lease is lost.
    """
    query = "SELECT * FROM jobs WHERE id = ? AND attempt = ? AND state = 'running'"
    row: sqlite3.Row | None = db.execute(query, (lease.job, lease.attempt)).fetchone()
    if row is None:
        raise stale(lease)
    return row


def stale(lease: Lease) -> StaleFence:
    return StaleFence(f"Attempt {lease.attempt} at job {lease.job} has lost its lease: nothing was written.")


def requeue(
    db: sqlite3.Connection,
    row: sqlite3.Row,
    now: float,
    *,
    outcome: str,
    failures: int,
    busy_s: float,
    not_before: float,
) -> None:
    """End the running attempt of a job; another one may follow."""
    end_attempt(db, row, now, outcome, busy_s)
    db.execute(
        "UPDATE jobs SET state = 'queued', owner = NULL, lease_mono = NULL, failures = ?, busy_s = busy_s + ?, "
        "not_before_mono = ? WHERE seq = ?",
        (failures, busy_s, not_before, row["seq"]),
    )


def end_attempt(db: sqlite3.Connection, row: sqlite3.Row, now: float, outcome: str, busy_s: float) -> None:
    db.execute(
        "UPDATE attempts SET ended_at = ?, outcome = ?, busy_s = ? WHERE job = ? AND attempt = ? AND ended_at IS NULL",
        (now, outcome, busy_s, row["id"], row["attempt"]),
    )


# --- after a restart, and with time ----------------------------------------------------------------------------------------


def set_clocks(db: sqlite3.Connection, now: float, mono: float) -> None:
    """Columns of the monotonic clock, for a process that has just started."""
    db.execute(
        "UPDATE jobs SET not_before_mono = 0, queued_mono = :mono - max(0, :now - received_at), "
        "expires_mono = :mono + min(expires_at - received_at, max(0, expires_at - :now)) "
        "WHERE state IN ('queued', 'running')",
        {"now": now, "mono": mono},
    )


def made_progress(db: sqlite3.Connection, row: sqlite3.Row) -> bool:
    """Whether the running attempt has added items to the stream."""
    query = "SELECT began_offset FROM attempts WHERE job = ? AND attempt = ?"
    return bool(db.execute(query, (row["id"], row["attempt"])).fetchone()["began_offset"] < row["count"])


def queues(db: sqlite3.Connection, mono: float) -> list[Queue]:
    """Every class that has open jobs."""
    query = (
        "SELECT priority, sum(state = 'queued') AS queued, sum(state = 'running') AS running, "
        "min(CASE WHEN state = 'queued' THEN queued_mono END) AS oldest "
        "FROM jobs WHERE state IN ('queued', 'running') GROUP BY priority"
    )
    return [
        Queue(
            priority=Priority(row["priority"]),
            queued=row["queued"],
            running=row["running"],
            oldest_s=0.0 if row["oldest"] is None else max(0.0, mono - row["oldest"]),
        )
        for row in db.execute(query)
    ]
