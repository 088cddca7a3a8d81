"""The schema of `cloud.db`.

`attempt` is also the fencing number: whoever writes names the attempt it works on, and a write of an earlier one changes no
row. Columns ending in `_mono` are on the monotonic clock of the process that has the table open; `recover` sets them anew at
every start from the wall-clock columns beside them. Columns beginning with `most_` are what the job may cost (`reserve.Most`).
"""

from __future__ import annotations

from pathlib import Path

from edgewise.core.sqlite import Database

MIGRATIONS = (
    """
CREATE TABLE jobs (
    seq INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    tenant TEXT NOT NULL,
    device TEXT NOT NULL,
    key TEXT NOT NULL,
    model TEXT NOT NULL,
    kind TEXT NOT NULL,
    prompt_tokens INTEGER NOT NULL,
    price_in REAL NOT NULL,
    price_out REAL NOT NULL,
    priority INTEGER NOT NULL,
    state TEXT NOT NULL,
    request TEXT,
    base INTEGER NOT NULL,
    first INTEGER NOT NULL,
    count INTEGER NOT NULL,
    attempt INTEGER NOT NULL DEFAULT 0,
    failures INTEGER NOT NULL DEFAULT 0,
    busy_s REAL NOT NULL DEFAULT 0,
    owner TEXT,
    lease_mono REAL,
    received_at REAL NOT NULL,
    queued_mono REAL NOT NULL,
    not_before_mono REAL NOT NULL DEFAULT 0,
    expires_at REAL,
    expires_mono REAL,
    cancel INTEGER NOT NULL DEFAULT 0,
    finished_at REAL,
    acked_at REAL,
    kept INTEGER NOT NULL DEFAULT 1,
    final TEXT,
    UNIQUE (tenant, device, key)
) STRICT;
CREATE INDEX jobs_by_state ON jobs (state, tenant);
CREATE INDEX jobs_by_day ON jobs (tenant, received_at);
CREATE INDEX jobs_with_content ON jobs (finished_at) WHERE kept = 1 AND finished_at IS NOT NULL;
CREATE TABLE attempts (
    job TEXT NOT NULL REFERENCES jobs (id) ON DELETE CASCADE,
    attempt INTEGER NOT NULL,
    owner TEXT NOT NULL,
    began_at REAL NOT NULL,
    began_offset INTEGER NOT NULL,
    ended_at REAL,
    busy_s REAL NOT NULL DEFAULT 0,
    outcome TEXT,
    PRIMARY KEY (job, attempt)
) STRICT, WITHOUT ROWID;
CREATE TABLE chunks (
    job TEXT NOT NULL REFERENCES jobs (id) ON DELETE CASCADE,
    seq INTEGER NOT NULL,
    offset INTEGER NOT NULL,
    stop INTEGER NOT NULL,
    body TEXT NOT NULL,
    PRIMARY KEY (job, seq)
) STRICT, WITHOUT ROWID;
CREATE TABLE usage (
    job TEXT PRIMARY KEY,
    tenant TEXT NOT NULL,
    device TEXT NOT NULL,
    model TEXT NOT NULL,
    state TEXT NOT NULL,
    at REAL NOT NULL,
    prompt_tokens INTEGER NOT NULL,
    completion_tokens INTEGER NOT NULL,
    steps INTEGER NOT NULL,
    busy_s REAL NOT NULL,
    price REAL NOT NULL
) STRICT;
CREATE INDEX usage_by_day ON usage (tenant, at);
CREATE TABLE blobs (
    tenant TEXT NOT NULL,
    sha256 TEXT NOT NULL,
    bytes INTEGER NOT NULL,
    media TEXT NOT NULL,
    expires_at REAL,
    PRIMARY KEY (tenant, sha256)
) STRICT, WITHOUT ROWID;
CREATE TABLE blob_uses (
    job TEXT NOT NULL REFERENCES jobs (id) ON DELETE CASCADE,
    tenant TEXT NOT NULL,
    sha256 TEXT NOT NULL,
    PRIMARY KEY (job, sha256)
) STRICT, WITHOUT ROWID;
CREATE INDEX blob_uses_by_blob ON blob_uses (tenant, sha256)
""",
    """
ALTER TABLE jobs ADD COLUMN most_tokens INTEGER NOT NULL DEFAULT 0;
ALTER TABLE jobs ADD COLUMN most_seconds REAL NOT NULL DEFAULT 0;
ALTER TABLE jobs ADD COLUMN most_price REAL NOT NULL DEFAULT 0
""",
)


def jobs_file(home: Path) -> Path:
    """The database in a state directory."""
    return home / "cloud.db"


def open_jobs(path: Path | None) -> Database:
    """The database at `path`; None for one in memory."""
    return Database(path, MIGRATIONS)
