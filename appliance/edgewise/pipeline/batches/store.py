"""Batches in SQLite. A line's result and the fact that it is done are one commit, so a restart neither repeats nor loses one."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from edgewise.core.clock import Clock, SystemClock
from edgewise.core.errors import InvalidRequest, NotFound, QueueFull
from edgewise.core.priority import PriorityName
from edgewise.core.privacy import PrivacyName
from edgewise.core.sqlite import Database
from edgewise.pipeline.batches.lines import Line, LineError

Status = Literal["validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"]
OPEN: tuple[Status, ...] = ("validating", "in_progress", "finalizing", "cancelling")
NO_COUNTS: Mapping[str, int] = {"total": 0, "completed": 0, "failed": 0}
NO_USAGE: Mapping[str, int] = {"input_tokens": 0, "cached_tokens": 0, "output_tokens": 0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Attributes:
    times: Seconds since the epoch at which a state was entered, by the name that OpenAI's document gives it.
    counts: total, completed, failed.
    usage: Tokens of the lines that are done.
    output_expires_s: Age at which the output files expire; None takes the service's.
    priority: Deadline class of its lines.
    privacy: Label of its lines, as key and header gave it; None takes the default.
    """

    id: str
    owner: str
    endpoint: str
    input_file: str
    status: Status
    created_at: float
    expires_at: float
    times: Mapping[str, float]
    metadata: Mapping[str, str] | None
    errors: Sequence[Mapping[str, Any]] | None
    counts: Mapping[str, int]
    usage: Mapping[str, int]
    output_file: str | None
    error_file: str | None
    output_expires_s: int | None
    priority: PriorityName = "background"
    privacy: PrivacyName | None = None


_JSON = ("times", "metadata", "errors", "counts", "usage")


class Batches:
    """Args:
    max_open: Unfinished batches of one owner; one more is refused.

    Attributes:
        changed: Set whenever there may be work; whoever waits for it clears it.
    """

    def __init__(self, database: Database, *, max_open: int = 100, clock: Clock | None = None) -> None:
        self._database = database
        self._max_open = max_open
        self._clock = clock or SystemClock()
        self.changed = asyncio.Event()

    def __repr__(self) -> str:
        return f"Batches({self._database!r}, max_open={self._max_open})"

    async def create(
        self,
        owner: str,
        *,
        endpoint: str,
        input_file: str,
        window_s: float,
        metadata: Mapping[str, str] | None,
        output_expires_s: int | None,
        priority: PriorityName = "background",
        privacy: PrivacyName | None = None,
    ) -> Batch:
        """Durable on return. Raises `QueueFull` at the limit."""
        now = self._clock.time()
        batch = Batch(
            id=f"batch_{uuid.uuid4().hex}",
            owner=owner,
            endpoint=endpoint,
            input_file=input_file,
            status="validating",
            created_at=now,
            expires_at=now + window_s,
            times={},
            metadata=metadata,
            errors=None,
            counts=NO_COUNTS,
            usage=NO_USAGE,
            output_file=None,
            error_file=None,
            output_expires_s=output_expires_s,
            priority=priority,
            privacy=privacy,
        )

        def work(connection: sqlite3.Connection) -> None:
            count = connection.execute(
                f"SELECT count(*) FROM batches WHERE owner = ? AND status IN {OPEN}",  # noqa: S608 - constants
                (owner,),
            ).fetchone()[0]
            if count >= self._max_open:
                raise QueueFull(
                    f"{count} batches are unfinished, which is this service's limit: wait for one, or cancel it.",
                    retry_after_s=60.0,
                )
            _insert(connection, batch)

        await self._database.run(work)
        self.changed.set()
        return batch

    async def get(self, owner: str, id: str) -> Batch:
        """Raises `NotFound`: there is none, or it is another owner's."""
        return await self._database.run(lambda connection: _find(connection, owner, id))

    async def of_owner(self, owner: str) -> list[Batch]:
        """Oldest first, without counts of what is still being done."""
        query = "SELECT * FROM batches WHERE owner = ? ORDER BY created_at, rowid"
        return await self._database.run(
            lambda connection: [_batch(row) for row in connection.execute(query, (owner,)).fetchall()]
        )

    async def cancel(self, owner: str, id: str) -> Batch:
        """Ask for the end of a batch. Raises `NotFound`; `InvalidRequest` if it has ended."""

        def work(connection: sqlite3.Connection) -> Batch:
            batch = _find(connection, owner, id)
            if batch.status == "cancelling":
                return batch
            if batch.status not in ("validating", "in_progress"):
                raise InvalidRequest(f"The batch is {batch.status}: it can no longer be cancelled.", param="batch_id")
            return self._enter(connection, batch, "cancelling")

        batch = await self._database.run(work)
        self.changed.set()
        return batch

    # --- for the runner ---------------------------------------------------------------------------------------------------

    async def unfinished(self) -> list[Batch]:
        """Of every owner, oldest first."""
        query = f"SELECT * FROM batches WHERE status IN {OPEN} ORDER BY created_at, rowid"  # noqa: S608 - constants
        return await self._database.run(
            lambda connection: [_batch(row) for row in connection.execute(query).fetchall()]
        )

    async def accept(self, batch: Batch, lines: Sequence[Line]) -> None:
        """The input file is valid: its lines wait."""

        def work(connection: sqlite3.Connection) -> None:
            if _status(connection, batch) != "validating":
                return
            connection.executemany(
                "INSERT INTO lines VALUES (?, ?, ?, ?, ?, 'waiting', NULL)",
                [(batch.id, line.number, line.custom_id, line.start, line.length) for line in lines],
            )
            connection.execute(
                "UPDATE batches SET counts = ? WHERE id = ?", (json.dumps({**NO_COUNTS, "total": len(lines)}), batch.id)
            )
            self._enter(connection, batch, "in_progress")

        await self._database.run(work)

    async def refuse(self, batch: Batch, errors: Sequence[LineError]) -> None:
        """The input file is not valid: nothing of it is done."""
        told = json.dumps([error.to_dict() for error in errors])

        def work(connection: sqlite3.Connection) -> None:
            if _status(connection, batch) == "validating":
                connection.execute("UPDATE batches SET errors = ? WHERE id = ?", (told, batch.id))
                self._enter(connection, batch, "failed")

        await self._database.run(work)

    async def waiting(self, batch: Batch, count: int, beside: Sequence[int]) -> list[Line]:
        """The next lines that nobody has done, besides those that are under way."""

        def work(connection: sqlite3.Connection) -> list[Line]:
            rows = connection.execute(
                "SELECT * FROM lines WHERE batch = ? AND state = 'waiting' ORDER BY line LIMIT ?",
                (batch.id, count + len(beside)),
            ).fetchall()
            found = [Line(row["line"], row["custom_id"], row["start"], row["length"]) for row in rows]
            return [line for line in found if line.number not in beside][:count]

        return await self._database.run(work)

    async def finish_line(
        self, batch: Batch, line: int, result: Mapping[str, Any], *, failed: bool, usage: Mapping[str, int]
    ) -> bool:
        """A line is done, durable on return; False if it was done already or its batch no longer wants it."""

        def work(connection: sqlite3.Connection) -> bool:
            done = connection.execute(
                "UPDATE lines SET state = ?, result = ? WHERE batch = ? AND line = ? AND state = 'waiting' "
                "AND (SELECT status FROM batches WHERE id = batch) = 'in_progress'",
                ("failed" if failed else "done", json.dumps(result, ensure_ascii=False), batch.id, line),
            )
            if done.rowcount == 0:
                return False
            now = _find(connection, batch.owner, batch.id)
            name = "failed" if failed else "completed"
            counts = {**now.counts, name: now.counts[name] + 1}
            total = {key: now.usage[key] + usage.get(key, 0) for key in NO_USAGE}
            connection.execute(
                "UPDATE batches SET counts = ?, usage = ? WHERE id = ?",
                (json.dumps(counts), json.dumps(total), batch.id),
            )
            return True

        return await self._database.run(work)

    async def give_up(self, batch: Batch, code: str, message: str) -> None:
        """Lines that were not done end with an error; the batch goes to its end."""

        def work(connection: sqlite3.Connection) -> None:
            rows = connection.execute(
                "SELECT line, custom_id FROM lines WHERE batch = ? AND state = 'waiting'", (batch.id,)
            ).fetchall()
            fault = {"code": code, "message": message}
            connection.executemany(
                "UPDATE lines SET state = 'failed', result = ? WHERE batch = ? AND line = ?",
                [
                    (json.dumps(_unanswered(row["custom_id"], fault), ensure_ascii=False), batch.id, row["line"])
                    for row in rows
                ],
            )
            now = _find(connection, batch.owner, batch.id)
            counts = {**now.counts, "failed": now.counts["failed"] + len(rows)}
            connection.execute("UPDATE batches SET counts = ? WHERE id = ?", (json.dumps(counts), batch.id))

        await self._database.run(work)

    async def finalize(self, batch: Batch) -> None:
        """Every line is done: what is left is writing the files."""
        await self._database.run(
            lambda connection: (
                _status(connection, batch) == "in_progress" and self._enter(connection, batch, "finalizing")
            )
        )

    async def results(self, batch: Batch, state: Literal["done", "failed"], after: int, count: int) -> list[Any]:
        """Rows (line, result) in the order of lines, after a line."""
        query = "SELECT line, result FROM lines WHERE batch = ? AND state = ? AND line > ? ORDER BY line LIMIT ?"
        return await self._database.run(
            lambda connection: connection.execute(query, (batch.id, state, after, count)).fetchall()
        )

    async def close(self, batch: Batch, status: Status, *, output_file: str | None, error_file: str | None) -> None:
        """The batch has ended; its results are in its files now."""

        def work(connection: sqlite3.Connection) -> None:
            connection.execute(
                "UPDATE batches SET output_file = ?, error_file = ? WHERE id = ?", (output_file, error_file, batch.id)
            )
            connection.execute("DELETE FROM lines WHERE batch = ?", (batch.id,))
            self._enter(connection, batch, status)

        await self._database.run(work)

    async def prune(self, keep_s: float) -> None:
        """Forget batches that ended and are older."""
        oldest = self._clock.time() - keep_s
        query = f"DELETE FROM batches WHERE created_at < ? AND status NOT IN {OPEN}"  # noqa: S608 - constants
        await self._database.run(lambda connection: connection.execute(query, (oldest,)).rowcount)

    def _enter(self, connection: sqlite3.Connection, batch: Batch, status: Status) -> Batch:
        times = {**_find(connection, batch.owner, batch.id).times, f"{status}_at": self._clock.time()}
        connection.execute(
            "UPDATE batches SET status = ?, times = ? WHERE id = ?", (status, json.dumps(times), batch.id)
        )
        return _find(connection, batch.owner, batch.id)


def _unanswered(custom_id: str, error: Mapping[str, str]) -> dict[str, Any]:
    return {"id": f"batch_req_{uuid.uuid4().hex}", "custom_id": custom_id, "response": None, "error": error}


def _status(connection: sqlite3.Connection, batch: Batch) -> str:
    return str(connection.execute("SELECT status FROM batches WHERE id = ?", (batch.id,)).fetchone()["status"])


def _find(connection: sqlite3.Connection, owner: str, id: str) -> Batch:
    row = connection.execute("SELECT * FROM batches WHERE id = ? AND owner = ?", (id, owner)).fetchone()
    if row is None:
        raise NotFound(f"There is no batch '{id[:80]}'.", param="batch_id")
    return _batch(row)


def _insert(connection: sqlite3.Connection, batch: Batch) -> None:
    names = list(Batch.__dataclass_fields__)
    values = [getattr(batch, name) for name in names]
    packed = [
        json.dumps(value) if name in _JSON and value is not None else value
        for name, value in zip(names, values, strict=True)
    ]
    marks = ", ".join("?" * len(names))
    connection.execute(f"INSERT INTO batches ({', '.join(names)}) VALUES ({marks})", packed)  # noqa: S608 - our own names


def _batch(row: Any) -> Batch:
    values = {name: row[name] for name in Batch.__dataclass_fields__}
    return Batch(**{name: json.loads(value) if name in _JSON and value else value for name, value in values.items()})
