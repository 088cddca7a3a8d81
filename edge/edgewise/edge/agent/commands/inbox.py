"""Commands in SQLite: a command that was accepted is on disk, and its end is one commit with the row that tells of it.

Every change is conditional on the command not having ended: whoever comes second changes nothing. What the same id asks for again
is answered from here.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from edgewise.core.sqlite import Database
from edgewise.edge.agent.commands.record import Lane, Order, Record, record_of
from edgewise.edge.agent.moments import Moments
from edgewise.edge.agent.schema import insert, moment_of
from edgewise.edge.agent.uplink.rows import Rows
from edgewise.wire import topics
from edgewise.wire.fleet import ENDED, Ack

_OPEN = "state IN ('accepted', 'running')"


@dataclass(frozen=True, slots=True)
class Taken:
    """What became of a command that arrived. `fresh`: it was not known before. `told`: its end waits in the uplink."""

    record: Record
    fresh: bool
    told: bool


class Inbox:
    """Args:
    uid: The device's, for topics.
    rows: Where ends wait for the fleet; of the same database.
    """

    def __init__(self, database: Database, rows: Rows, moments: Moments, uid: str) -> None:
        self._database = database
        self._rows = rows
        self._moments = moments
        self._uid = uid

    def __repr__(self) -> str:
        return f"Inbox({self._database!r})"

    # --- arriving --------------------------------------------------------------------------------------------------------

    async def take(self, order: Order, refusal: Ack | None = None) -> Taken:
        """Keep a command, or what is known of its id. With `refusal` a new one has ended at once.

        Raises:
            StorageError: The disk refuses; nothing is kept, and it must not be accepted.
        """

        def work(connection: sqlite3.Connection) -> Taken:
            known = _find(connection, order.id)
            if known is not None:
                return Taken(known, False, self._waits(connection, order.id))
            self._insert(connection, order)
            if refusal is not None:
                self._end(connection, order.id, refusal)
            record = _find(connection, order.id)
            assert record is not None
            return Taken(record, True, refusal is not None)

        return await self._database.run(work)

    async def find(self, id: str) -> Record | None:
        return await self._database.run(lambda connection: _find(connection, id))

    # --- working ---------------------------------------------------------------------------------------------------------

    async def next(self, lane: Lane, without: Collection[str]) -> Record | None:
        """The oldest command of a lane that has not ended and is not one of these."""
        marks = ", ".join("?" * len(without))
        query = f"SELECT * FROM commands WHERE {_OPEN} AND lane = ? AND id NOT IN ({marks}) ORDER BY number LIMIT 1"  # noqa: S608

        def work(connection: sqlite3.Connection) -> Record | None:
            row = connection.execute(query, (lane, *without)).fetchone()
            return None if row is None else record_of(row)

        return await self._database.run(work)

    async def open(self) -> list[str]:
        """Ids of the commands that have not ended, oldest first."""
        query = f"SELECT id FROM commands WHERE {_OPEN} ORDER BY number"  # noqa: S608
        return [row["id"] for row in await self._database.run(lambda connection: connection.execute(query).fetchall())]

    async def begin(self, id: str) -> bool:
        """From now on it may have an effect. False if it has ended meanwhile."""
        return await self._change(id, "state = 'running', begun = 1")

    async def progress(self, id: str, step: str, percent: float | None) -> bool:
        return await self._change(id, "step = ?, percent = ?", step, percent)

    async def note(self, id: str, note: dict[str, Any]) -> bool:
        """Write something down for a later start."""
        return await self._change(id, "note = ?", json.dumps(note))

    async def cancel(self, id: str) -> bool:
        """Somebody asks for its end; also if the service is ended before it has come."""
        return await self._change(id, "cancelled = 1")

    async def extend(self, id: str, seconds: float) -> bool:
        return await self._change(id, "total_s = total_s + ?", seconds)

    async def end(self, id: str, ack: Ack) -> bool:
        """It has ended so, and the fleet is to hear of it. False if it had ended before.

        Raises:
            StorageError: The disk refuses; it has not ended.
        """

        def work(connection: sqlite3.Connection) -> bool:
            record = _find(connection, id)
            if record is None or record.ended:
                return False
            self._end(connection, id, ack)
            return True

        return await self._database.run(work)

    # --- keeping ---------------------------------------------------------------------------------------------------------

    async def prune(self, keep_s: float, max_bytes: int) -> None:
        """Forget what ended long ago and was received. Beyond `max_bytes` the oldest keep their state and lose their result."""

        def work(connection: sqlite3.Connection) -> None:
            query = (
                "SELECT id, boot, up_s, wall_s, LENGTH(outcome) AS size FROM commands WHERE outcome IS NOT NULL "
                "AND id NOT IN (SELECT re FROM uplink WHERE re IS NOT NULL) ORDER BY number DESC"
            )
            total = 0
            for row in connection.execute(query).fetchall():
                if self._moments.age_s(moment_of(row)) >= keep_s:
                    connection.execute("DELETE FROM commands WHERE id = ?", (row["id"],))
                    continue
                total += row["size"]
                if total > max_bytes:
                    query = "UPDATE commands SET outcome = json_remove(outcome, '$.result') WHERE id = ?"
                    connection.execute(query, (row["id"],))

        await self._database.run(work)

    # --- inside a transaction --------------------------------------------------------------------------------------------

    def _insert(self, connection: sqlite3.Connection, order: Order) -> None:
        values = {
            "id": order.id,
            "op": order.op,
            "lane": order.lane,
            "args": json.dumps(order.args),
            "reply": order.reply,
            "state": "accepted",
            "total_s": order.total_s,
            "step_s": order.step_s,
        }
        insert(connection, "commands", values, self._moments.now())

    def _end(self, connection: sqlite3.Connection, id: str, ack: Ack) -> None:
        """What was asked is not kept any longer: a prompt may be in it."""
        assert ack.state in ENDED
        now = self._moments.now()
        connection.execute(
            "UPDATE commands SET state = ?, outcome = ?, args = '{}', boot = ?, up_s = ?, wall_s = ? WHERE id = ?",
            (ack.state, ack.model_dump_json(exclude_none=True), now.boot, now.up_s, now.wall_s, id),
        )
        self._rows.put(connection, "result", topics.ack(self._uid, id), ack, re=id)

    def _waits(self, connection: sqlite3.Connection, id: str) -> bool:
        return connection.execute("SELECT 1 FROM uplink WHERE re = ? LIMIT 1", (id,)).fetchone() is not None

    async def _change(self, id: str, what: str, *values: object) -> bool:
        query = f"UPDATE commands SET {what} WHERE id = ? AND {_OPEN}"  # noqa: S608 - our own columns
        return await self._database.run(lambda connection: connection.execute(query, (*values, id)).rowcount == 1)


def _find(connection: sqlite3.Connection, id: str) -> Record | None:
    row = connection.execute("SELECT * FROM commands WHERE id = ?", (id,)).fetchone()
    return None if row is None else record_of(row)
