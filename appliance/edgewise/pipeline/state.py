"""The schema of the service's own database: answers that are kept, files, batches and their lines, receipts."""

from __future__ import annotations

from pathlib import Path

from edgewise.core.sqlite import Database

MIGRATIONS = (
    """
CREATE TABLE responses (
    id TEXT PRIMARY KEY,
    owner TEXT NOT NULL,
    previous TEXT,
    created_at REAL NOT NULL,
    used_at REAL NOT NULL,
    body TEXT NOT NULL,
    input TEXT NOT NULL
) STRICT;
CREATE INDEX responses_by_use ON responses (owner, used_at);
CREATE TABLE files (
    id TEXT PRIMARY KEY,
    owner TEXT NOT NULL,
    purpose TEXT NOT NULL,
    filename TEXT NOT NULL,
    bytes INTEGER NOT NULL,
    created_at REAL NOT NULL,
    expires_at REAL
) STRICT;
CREATE INDEX files_by_owner ON files (owner, created_at);
CREATE TABLE batches (
    id TEXT PRIMARY KEY,
    owner TEXT NOT NULL,
    endpoint TEXT NOT NULL,
    input_file TEXT NOT NULL,
    status TEXT NOT NULL,
    created_at REAL NOT NULL,
    expires_at REAL NOT NULL,
    times TEXT NOT NULL,
    metadata TEXT,
    errors TEXT,
    counts TEXT NOT NULL,
    usage TEXT NOT NULL,
    output_file TEXT,
    error_file TEXT,
    output_expires_s INTEGER
) STRICT;
CREATE INDEX batches_by_owner ON batches (owner, created_at);
CREATE TABLE lines (
    batch TEXT NOT NULL REFERENCES batches (id) ON DELETE CASCADE,
    line INTEGER NOT NULL,
    custom_id TEXT NOT NULL,
    start INTEGER NOT NULL,
    length INTEGER NOT NULL,
    state TEXT NOT NULL,
    result TEXT,
    PRIMARY KEY (batch, line)
) STRICT, WITHOUT ROWID;
CREATE INDEX lines_by_state ON lines (batch, state, line)
""",
    "ALTER TABLE batches ADD COLUMN priority TEXT NOT NULL DEFAULT 'background'",
    # What was kept before there were labels could be sent nowhere: whatever continues it takes the label that is configured.
    "ALTER TABLE responses ADD COLUMN privacy TEXT; ALTER TABLE batches ADD COLUMN privacy TEXT",
    """
CREATE TABLE receipts (
    id TEXT PRIMARY KEY,
    at REAL NOT NULL,
    key TEXT NOT NULL,
    model TEXT NOT NULL,
    place TEXT NOT NULL,
    predicted_s REAL,
    real_s REAL,
    bytes INTEGER NOT NULL,
    price REAL NOT NULL,
    plan TEXT NOT NULL,
    receipt TEXT,
    fault TEXT
) STRICT;
CREATE INDEX receipts_by_time ON receipts (at)
""",
    "ALTER TABLE receipts ADD COLUMN lesson TEXT",
)


def open_state(path: Path | None) -> Database:
    """The database at `path`; None for one in memory."""
    return Database(path, MIGRATIONS)
