"""Rows that wait for the fleet, and what has to go when there is no room: results never, telemetry first.

A row leaves when the fleet says that it has it, not when the broker does. Telemetry is thinned before any of it is dropped: of
the rows that were thinned least every second one goes, so that a long time offline is still seen as a whole, more coarsely.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any, Literal, get_args

from pydantic import BaseModel

from edgewise.core.sqlite import Database
from edgewise.edge.agent.moments import Moment, Moments
from edgewise.edge.agent.schema import insert, moment_of
from edgewise.wire.envelope import new_ulid

RowClass = Literal["result", "alert", "log", "telemetry"]
CLASSES: tuple[RowClass, ...] = get_args(RowClass)
"""The most important first: sent in this order, dropped in the opposite one."""
MAX_THINNED = 4
"""Times that telemetry is thinned before the oldest is dropped: to a sixteenth."""
_OVERHEAD = 200  # bytes that a row takes besides its body


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A message for the fleet. `re` is the command that it answers."""

    number: int
    id: str
    kind: RowClass
    topic: str
    body: dict[str, Any]
    re: str | None
    bytes: int
    moment: Moment


class Rows:
    """The table.

    Args:
        max_bytes: Of all rows together; results are kept beyond it.
    """

    def __init__(self, database: Database, moments: Moments, *, max_bytes: int) -> None:
        self._database = database
        self._moments = moments
        self._max_bytes = max_bytes
        self.dropped = 0
        """Rows that had to go since the start."""

    def __repr__(self) -> str:
        return f"Rows(max_bytes={self._max_bytes}, dropped={self.dropped})"

    async def add(self, kind: RowClass, topic: str, body: BaseModel, re: str | None = None) -> None:
        """Keep a message; it is on disk when this returns.

        Raises:
            StorageError: The disk refuses.
        """
        await self._database.run(lambda connection: self.put(connection, kind, topic, body, re))

    def put(
        self, connection: sqlite3.Connection, kind: RowClass, topic: str, body: BaseModel, re: str | None = None
    ) -> None:
        """As `add`, inside a transaction of somebody who does more."""
        text = body.model_dump_json(exclude_none=True)
        size = len(text.encode()) + _OVERHEAD
        self._make_room(connection, size)
        values = {"id": new_ulid(), "class": kind, "topic": topic, "body": text, "re": re, "bytes": size}
        insert(connection, "uplink", values, self._moments.now())

    async def next(self, kind: RowClass, after: int, limit: int) -> list[Row]:
        """The oldest rows of a class behind number `after`."""
        query = "SELECT * FROM uplink WHERE class = ? AND number > ? ORDER BY number LIMIT ?"
        return await self._select(query, kind, after, limit)

    async def get(self, numbers: Collection[int]) -> list[Row]:
        """Those of these rows that still wait."""
        marks = ", ".join("?" * len(numbers))
        return await self._select(f"SELECT * FROM uplink WHERE number IN ({marks}) ORDER BY number", *numbers)  # noqa: S608

    async def received(self, ids: Iterable[str]) -> None:
        """The fleet has these."""
        gone = [(id,) for id in ids]
        await self._database.run(lambda connection: connection.executemany("DELETE FROM uplink WHERE id = ?", gone))

    async def depths(self) -> dict[str, int]:
        """Rows that wait, by class; classes without any are left out."""
        query = "SELECT class, COUNT(*) AS rows FROM uplink GROUP BY class"
        found = await self._database.run(lambda connection: connection.execute(query).fetchall())
        return {row["class"]: row["rows"] for row in found}

    async def clear_bulk(self) -> int:
        """Drop all telemetry and logs, for a disk that has no room for more important rows; returns how many."""
        query = "DELETE FROM uplink WHERE class IN ('telemetry', 'log')"
        gone = await self._database.run(lambda connection: connection.execute(query).rowcount)
        self.dropped += gone
        return gone

    async def _select(self, query: str, *values: object) -> list[Row]:
        found = await self._database.run(lambda connection: connection.execute(query, values).fetchall())
        return [_row(one) for one in found]

    def _make_room(self, connection: sqlite3.Connection, size: int) -> None:
        while _total(connection) + size > self._max_bytes:
            gone = _thin(connection) or _drop_oldest(connection, size)
            if not gone:
                return  # only results are left, and they stay
            self.dropped += gone


def _total(connection: sqlite3.Connection) -> int:
    return int(connection.execute("SELECT COALESCE(SUM(bytes), 0) FROM uplink").fetchone()[0])


def _thin(connection: sqlite3.Connection) -> int:
    """Drop every second row of the telemetry that was thinned least; how many went."""
    query = "SELECT number, thinned FROM uplink WHERE class = 'telemetry' ORDER BY thinned, number"
    found = connection.execute(query).fetchall()
    level = found[0]["thinned"] if found else MAX_THINNED
    least = [row["number"] for row in found if row["thinned"] == level]
    if level >= MAX_THINNED or len(least) < 2:
        return 0
    gone = least[::2]
    connection.executemany("DELETE FROM uplink WHERE number = ?", [(number,) for number in gone])
    query = "UPDATE uplink SET thinned = thinned + 1 WHERE class = 'telemetry' AND thinned = ?"
    connection.execute(query, (level,))
    return len(gone)


def _drop_oldest(connection: sqlite3.Connection, size: int) -> int:
    """Drop the oldest rows of the least important class until `size` bytes are free; how many went. 0: only results wait."""
    for kind in reversed(CLASSES[1:]):
        query = "SELECT number, bytes FROM uplink WHERE class = ? ORDER BY number"
        gone: list[tuple[int]] = []
        for row in connection.execute(query, (kind,)):
            gone.append((row["number"],))
            size -= row["bytes"]
            if size <= 0:
                break
        if gone:
            connection.executemany("DELETE FROM uplink WHERE number = ?", gone)
            return len(gone)
    return 0


def _row(row: sqlite3.Row) -> Row:
    return Row(
        number=row["number"],
        id=row["id"],
        kind=row["class"],
        topic=row["topic"],
        body=json.loads(row["body"]),
        re=row["re"],
        bytes=row["bytes"],
        moment=moment_of(row),
    )
