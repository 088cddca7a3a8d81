"""Shadows on disk: the newest document that arrived, and the last one that was in force. One commit each."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from edgewise.core.sqlite import Database

State = Literal["applied", "pending", "refused"]


@dataclass(frozen=True, slots=True)
class Standing:
    """Attributes:
    seen: Newest generation that arrived; `wanted` is its document.
    applied: The one in force, last known good; `document` is its document.
    state, reason: What became of the newest.
    """

    seen: int = 0
    applied: int = 0
    state: State = "applied"
    reason: str = ""
    wanted: dict[str, Any] = field(default_factory=dict)
    document: dict[str, Any] = field(default_factory=dict)

    def arrived(self, gen: int, wanted: dict[str, Any]) -> Standing:
        return replace(self, seen=gen, wanted=wanted, state="pending", reason="")

    def in_force(self, reason: str) -> Standing:
        return replace(self, applied=self.seen, document=self.wanted, state="applied", reason=reason)

    def refused(self, reason: str) -> Standing:
        return replace(self, state="refused", reason=reason[:2000])

    def waits(self, reason: str) -> Standing:
        return replace(self, state="pending", reason=reason[:2000])


class Shadows:
    """The table of all shadows."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def all(self) -> dict[str, Standing]:
        rows = await self._database.run(lambda connection: connection.execute("SELECT * FROM shadows").fetchall())
        return {row["name"]: _standing(row) for row in rows}

    async def put(self, name: str, standing: Standing) -> None:
        """On disk when this returns.

        Raises:
            StorageError: The disk refuses; what was there before still is.
        """
        values = (
            name,
            standing.seen,
            standing.applied,
            standing.state,
            standing.reason,
            json.dumps(standing.wanted),
            json.dumps(standing.document),
        )
        query = (
            "INSERT OR REPLACE INTO shadows (name, seen, applied, state, reason, wanted, document) "
            "VALUES (?, ?, ?, ?, ?, ?, ?)"
        )

        def work(connection: sqlite3.Connection) -> None:
            connection.execute(query, values)

        await self._database.run(work)


def _standing(row: sqlite3.Row) -> Standing:
    return Standing(
        row["seen"], row["applied"], row["state"], row["reason"], json.loads(row["wanted"]), json.loads(row["document"])
    )
