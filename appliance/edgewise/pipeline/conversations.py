"""Answers that are kept so that a later request can continue them, in SQLite, for their owner only and for a limited time."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from edgewise.core.clock import Clock, SystemClock
from edgewise.core.errors import NotFound
from edgewise.core.privacy import Privacy, privacy_of
from edgewise.core.sqlite import Database

Item = Mapping[str, Any]
MAX_TURNS = 1000
"""A conversation of more answers is refused: its prompt would be beyond any context here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """One kept answer.

    Attributes:
        body: The answer as it was told; its `output` is a list of items.
        input: The items of its request, without those of the answers before it.
        previous: Id of the answer that it continued.
        privacy: Label of its request; None for answers that were kept before there were labels.
    """

    id: str
    body: Mapping[str, Any]
    input: Sequence[Item]
    previous: str | None = None
    privacy: Privacy | None = None


@dataclass(frozen=True, slots=True)
class History:
    """A conversation up to and with one answer: its items, oldest first, and the strictest label of its requests."""

    items: Sequence[Item]
    privacy: Privacy | None


class Conversations:
    """Args:
    keep_s: Age since the last use (as an answer or as part of a conversation that went on) after which an answer is dropped.
    keep_count: Answers kept for each owner; the ones that were not used for the longest time are dropped first.
    """

    def __init__(
        self, database: Database, *, keep_s: float = 30 * 86_400.0, keep_count: int = 10_000, clock: Clock | None = None
    ) -> None:
        self._database = database
        self._keep_s = keep_s
        self._keep_count = keep_count
        self._clock = clock or SystemClock()

    def __repr__(self) -> str:
        return f"Conversations({self._database!r}, keep_s={self._keep_s:g}, keep_count={self._keep_count})"

    async def put(self, owner: str, kept: Kept) -> None:
        """Keep an answer; durable on return. Drops what is too old or too much."""
        now = self._clock.time()
        label = None if kept.privacy is None else kept.privacy.label
        values = (kept.id, owner, kept.previous, now, now, _dumps(kept.body), _dumps(kept.input), label)

        def work(connection: sqlite3.Connection) -> None:
            connection.execute("INSERT INTO responses VALUES (?, ?, ?, ?, ?, ?, ?, ?)", values)
            self._prune(connection, owner, now)

        await self._database.run(work)

    async def get(self, owner: str, id: str) -> Kept:
        """Raises `NotFound`: there is none, it is another owner's, or it was dropped; the three look the same from outside."""
        return await self._database.run(lambda connection: self._find(connection, owner, id, "response_id"))

    async def delete(self, owner: str, id: str) -> None:
        """Forget an answer; what continued it can then not be continued further. Raises `NotFound`."""

        def work(connection: sqlite3.Connection) -> None:
            self._find(connection, owner, id, "response_id")
            connection.execute("DELETE FROM responses WHERE id = ?", (id,))

        await self._database.run(work)

    async def history(self, owner: str, id: str) -> History:
        """The conversation up to and with the answer `id`; marks all of it as used.

        Raises:
            NotFound: The answer or one before it is not there; the message names it.
        """
        return await self._database.run(lambda connection: self._history(connection, owner, id))

    async def prune(self) -> None:
        """Drop what is too old, of every owner."""
        now = self._clock.time()
        oldest = now - self._keep_s
        await self._database.run(lambda one: one.execute("DELETE FROM responses WHERE used_at < ?", (oldest,)).rowcount)

    def _history(self, connection: sqlite3.Connection, owner: str, id: str) -> History:
        turns: list[Kept] = []
        wanted: str | None = id
        while wanted is not None:
            if len(turns) == MAX_TURNS:
                raise NotFound(f"The conversation has more than {MAX_TURNS} answers.", param="previous_response_id")
            turns.append(self._find(connection, owner, wanted, "previous_response_id"))
            wanted = turns[-1].previous
        now = self._clock.time()
        connection.executemany("UPDATE responses SET used_at = ? WHERE id = ?", [(now, turn.id) for turn in turns])
        items = [item for turn in reversed(turns) for item in (*turn.input, *turn.body["output"])]
        return History(items, min((turn.privacy for turn in turns if turn.privacy is not None), default=None))

    def _find(self, connection: sqlite3.Connection, owner: str, id: str, param: str) -> Kept:
        oldest = self._clock.time() - self._keep_s
        query = "SELECT * FROM responses WHERE id = ? AND owner = ? AND used_at >= ?"
        row = connection.execute(query, (id, owner, oldest)).fetchone()
        if row is None:
            raise NotFound(
                f"There is no response '{id[:80]}': it was never stored, has been deleted, or was dropped by age or number "
                "(responses.keep_days, responses.keep_count).",
                param=param,
            )
        return Kept(
            id=row["id"],
            body=json.loads(row["body"]),
            input=json.loads(row["input"]),
            previous=row["previous"],
            privacy=None if row["privacy"] is None else privacy_of(row["privacy"]),
        )

    def _prune(self, connection: sqlite3.Connection, owner: str, now: float) -> None:
        connection.execute("DELETE FROM responses WHERE owner = ? AND used_at < ?", (owner, now - self._keep_s))
        connection.execute(
            "DELETE FROM responses WHERE id IN (SELECT id FROM responses WHERE owner = ? "
            "ORDER BY used_at DESC, created_at DESC, rowid DESC LIMIT -1 OFFSET ?)",
            (owner, self._keep_count),
        )


def _dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
