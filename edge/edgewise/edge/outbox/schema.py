"""The outbox's table."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edgewise.core.priority import priority_of
from edgewise.core.sqlite import Database
from edgewise.edge.outbox.job import Job, Order

OPEN = ("queued", "running")

MIGRATIONS = (
    """
CREATE TABLE jobs (
    id TEXT PRIMARY KEY,
    owner TEXT NOT NULL,
    url TEXT NOT NULL,
    body TEXT,
    deliver TEXT NOT NULL,
    key TEXT,
    fingerprint TEXT NOT NULL,
    priority TEXT NOT NULL,
    urgency INTEGER NOT NULL,
    privacy TEXT,
    policy TEXT,
    allowed TEXT NOT NULL,
    seed INTEGER NOT NULL,
    state TEXT NOT NULL,
    waiting TEXT,
    created_at REAL NOT NULL,
    expires_at REAL NOT NULL,
    next_at REAL NOT NULL,
    tries INTEGER NOT NULL DEFAULT 0,
    crashes INTEGER NOT NULL DEFAULT 0,
    breaks INTEGER NOT NULL DEFAULT 0,
    started_at REAL,
    ended_at REAL,
    response TEXT,
    delivery TEXT NOT NULL DEFAULT 'none',
    sends INTEGER NOT NULL DEFAULT 0,
    send_at REAL,
    send_error TEXT,
    delivered_at REAL,
    bytes INTEGER NOT NULL
) STRICT;
CREATE UNIQUE INDEX jobs_by_key ON jobs (owner, key) WHERE key IS NOT NULL;
CREATE INDEX jobs_by_owner ON jobs (owner, created_at);
CREATE INDEX jobs_by_turn ON jobs (state, urgency, created_at);
CREATE INDEX jobs_by_delivery ON jobs (delivery, send_at)
""",
)

OUTLINE = ", ".join(f"NULL AS {name}" if name in ("body", "response") else name for name in Job.__dataclass_fields__)
"""Columns of a job without its large ones."""
_JSON = frozenset({"body", "allowed", "response"})


def open_outbox(path: Path | None) -> Database:
    """The database at `path`; None for one in memory."""
    return Database(path, MIGRATIONS)


def fingerprint(order: Order) -> str:
    """SHA-256 over what an idempotency key stands for: the same key with another one is a mistake."""
    told = [order.url, order.body, order.deliver, order.privacy, order.policy, list(order.allowed)]
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()


def insert(connection: sqlite3.Connection, id: str, order: Order, now: float) -> None:
    body = json.dumps(order.body, ensure_ascii=False)
    values: dict[str, Any] = {
        "id": id,
        "owner": order.owner,
        "url": order.url,
        "body": body,
        "deliver": order.deliver,
        "key": order.key,
        "fingerprint": fingerprint(order),
        "priority": order.priority,
        "urgency": int(priority_of(order.priority)),
        "privacy": order.privacy,
        "policy": order.policy,
        "allowed": json.dumps(order.allowed),
        "seed": order.seed,
        "state": "queued",
        "created_at": now,
        "expires_at": now + order.ttl_s,
        "next_at": now,
        "bytes": size(body),
    }
    marks = ", ".join("?" * len(values))
    connection.execute(f"INSERT INTO jobs ({', '.join(values)}) VALUES ({marks})", [*values.values()])  # noqa: S608 - our own names


def job_of(row: Any) -> Job:
    values = {name: row[name] for name in Job.__dataclass_fields__}
    read = {name: json.loads(value) if name in _JSON and value is not None else value for name, value in values.items()}
    return Job(**{**read, "allowed": tuple(read["allowed"])})


def packed(response: Mapping[str, Any]) -> str:
    return json.dumps(response, ensure_ascii=False)


def size(text: str) -> int:
    """Bytes that a text takes in the table."""
    return len(text.encode("utf-8"))
