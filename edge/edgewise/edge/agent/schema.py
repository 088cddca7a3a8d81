"""The agent's database: commands, rows for the fleet, shadows. One file, so that the end of a command and the row that tells of
it are one commit."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edgewise.core.sqlite import Database
from edgewise.edge.agent.moments import Moment

MIGRATIONS = (
    """
CREATE TABLE commands (
    number INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    op TEXT NOT NULL,
    lane TEXT NOT NULL,
    args TEXT NOT NULL,
    reply TEXT,
    state TEXT NOT NULL,
    step TEXT NOT NULL DEFAULT '',
    percent REAL,
    begun INTEGER NOT NULL DEFAULT 0,
    cancelled INTEGER NOT NULL DEFAULT 0,
    total_s REAL NOT NULL,
    step_s REAL NOT NULL,
    note TEXT,
    outcome TEXT,
    boot TEXT NOT NULL,
    up_s REAL NOT NULL,
    wall_s REAL NOT NULL
) STRICT;
CREATE INDEX commands_by_turn ON commands (state, lane, number);
CREATE TABLE uplink (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    class TEXT NOT NULL,
    topic TEXT NOT NULL,
    body TEXT NOT NULL,
    re TEXT,
    bytes INTEGER NOT NULL,
    thinned INTEGER NOT NULL DEFAULT 0,
    boot TEXT NOT NULL,
    up_s REAL NOT NULL,
    wall_s REAL NOT NULL
) STRICT;
CREATE INDEX uplink_by_class ON uplink (class, number, bytes);
CREATE INDEX uplink_by_command ON uplink (re) WHERE re IS NOT NULL;
CREATE TABLE facts (
    name TEXT PRIMARY KEY,
    value TEXT NOT NULL
) STRICT;
CREATE TABLE shadows (
    name TEXT PRIMARY KEY,
    seen INTEGER NOT NULL,
    applied INTEGER NOT NULL,
    state TEXT NOT NULL,
    reason TEXT NOT NULL,
    wanted TEXT NOT NULL,
    document TEXT NOT NULL
) STRICT
""",
)
"""Number i brings a database of version i to version i + 1. In `commands`, the moment is that of the acceptance until the
command has ended, then that of its end."""


def open_agent(path: Path | None) -> Database:
    """The database at `path`; None for one in memory."""
    return Database(path, MIGRATIONS)


def insert(connection: sqlite3.Connection, table: str, values: Mapping[str, Any], moment: Moment) -> None:
    """A row with the moment of now."""
    row = {**values, "boot": moment.boot, "up_s": moment.up_s, "wall_s": moment.wall_s}
    marks = ", ".join("?" * len(row))
    connection.execute(f"INSERT INTO {table} ({', '.join(row)}) VALUES ({marks})", [*row.values()])  # noqa: S608 - our own names


def moment_of(row: sqlite3.Row) -> Moment:
    return Moment(row["boot"], row["up_s"], row["wall_s"])
