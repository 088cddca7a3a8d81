"""How jobs end: final record and bill in one transaction, and what is forgotten afterwards."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from edgewise.cloud.jobs.records import Bill, Ending, Job
from edgewise.cloud.jobs.statements import by_id, content, end_attempt, job_of, use_blobs
from edgewise.wire.messages import Final, Unit, Usage
from edgewise.wire.stream_log import StreamHash


def end(db: sqlite3.Connection, row: sqlite3.Row, ending: Ending, now: float) -> Job:
    """Write the final record and the bill, together. `row` is that of an open job."""
    job = job_of(row)
    usage = _usage(row, ending)
    final = Final(
        state=ending.state,
        attempt=job.attempt,
        count=job.count,
        unit=ending.unit,
        sha256=_hash(db, row, ending.unit) if ending.state == "succeeded" else None,
        finish=ending.finish,
        usage=usage,
        blobs=ending.blobs,
        facts=ending.facts,
        numeric_class=ending.numeric_class,
        precision=ending.precision,
        error_code=ending.error_code,
        error_message=ending.error_message,
        retryable=ending.retryable,
    )
    end_attempt(db, row, now, ending.state, ending.busy_s)
    use_blobs(db, job.tenant, job.id, [blob.sha256 for blob in ending.blobs])
    db.execute(
        "UPDATE jobs SET state = ?, final = ?, finished_at = ?, owner = NULL, lease_mono = NULL, busy_s = ? WHERE seq = ?",
        (ending.state, final.model_dump_json(exclude_none=True), now, usage.busy_s, row["seq"]),
    )
    db.execute(
        "INSERT INTO usage VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            job.id,
            job.tenant,
            job.device,
            job.model,
            ending.state,
            now,
            usage.prompt_tokens,
            usage.completion_tokens,
            usage.steps,
            usage.busy_s,
            usage.price,
        ),
    )
    return by_id(db, job.tenant, job.id)


def drop_content(db: sqlite3.Connection, rows: Sequence[sqlite3.Row]) -> int:
    """Forget prompt, chunks and result of ended jobs; state, counts and usage stay. Returns how many."""
    for row in rows:
        final = Final.model_validate_json(row["final"])
        bare = final.model_copy(
            update={"sha256": None, "blobs": (), "facts": None, "error_message": None}
        ).model_dump_json(exclude_none=True)
        db.execute(
            "UPDATE jobs SET kept = 0, request = NULL, final = ?, first = count WHERE seq = ?", (bare, row["seq"])
        )
        db.execute("DELETE FROM chunks WHERE job = ?", (row["id"],))
        _release_blobs(db, row["id"])
    return len(rows)


_RELEASE = """
UPDATE blobs SET expires_at = 0 WHERE (tenant, sha256) IN (SELECT tenant, sha256 FROM blob_uses WHERE job = :job)
AND NOT EXISTS (
    SELECT 1 FROM blob_uses AS other
    WHERE other.tenant = blobs.tenant AND other.sha256 = blobs.sha256 AND other.job != :job
)
"""


def _release_blobs(db: sqlite3.Connection, job: str) -> None:
    """Blobs that no other job uses are due at once."""
    db.execute(_RELEASE, {"job": job})
    db.execute("DELETE FROM blob_uses WHERE job = ?", (job,))


def _usage(row: sqlite3.Row, ending: Ending) -> Usage:
    """A job that failed costs nothing; of all others, what was made is paid, at the prices of its receipt."""
    busy_s = row["busy_s"] + ending.busy_s
    if ending.state in ("failed", "rejected") or not row["attempt"]:
        return Usage(busy_s=busy_s)
    prompt, made = row["prompt_tokens"] or ending.prompt_tokens, row["count"] - row["base"]
    return Usage(
        prompt_tokens=prompt,
        completion_tokens=0 if row["kind"] == "diffuse" else made,
        steps=made if row["kind"] == "diffuse" else 0,
        busy_s=busy_s,
        price=(prompt * row["price_in"] + made * row["price_out"]) / 1000,
    )


def _hash(db: sqlite3.Connection, row: sqlite3.Row, unit: Unit) -> str | None:
    """Of the whole stream; steps are no content."""
    if unit == "steps":
        return None
    tokens, text = content(db, row["id"], row["request"])
    hashed = StreamHash()
    if unit == "tokens":
        hashed.tokens(tokens)
    else:
        hashed.text(text)
    return hashed.hexdigest()


def forget(db: sqlite3.Connection, jobs_before: float, usage_before: float) -> None:
    """Delete the rows of jobs without content, and the bills, that ended before."""
    db.execute("DELETE FROM jobs WHERE kept = 0 AND finished_at < ?", (jobs_before,))
    db.execute("DELETE FROM usage WHERE at < ?", (usage_before,))


def bills(db: sqlite3.Connection, since: float, tenant: str | None) -> list[Bill]:
    """Usage of ended jobs by tenant and model."""
    query = (
        "SELECT tenant, model, count(*) AS jobs, sum(prompt_tokens) AS prompt_tokens, sum(completion_tokens) AS "
        "completion_tokens, sum(steps) AS steps, sum(busy_s) AS busy_s, sum(price) AS price FROM usage "
        "WHERE at >= :since AND (:tenant IS NULL OR tenant = :tenant) GROUP BY tenant, model ORDER BY tenant, model"
    )
    rows = db.execute(query, {"since": since, "tenant": tenant})
    return [Bill(**{name: row[name] for name in Bill.__dataclass_fields__}) for row in rows]
