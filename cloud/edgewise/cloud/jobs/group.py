"""Group commit: appends of all streams go to disk together, one commit after the other, so that a token costs no disk write.

Readers are told of chunks after their commit. So what anybody was sent survives a power cut, and a later attempt goes on after
it; what a power cut takes are tokens that nobody has seen, which the next attempt generates again.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from functools import partial

from edgewise.cloud.jobs import statements
from edgewise.cloud.jobs.records import Lease
from edgewise.cloud.jobs.statements import Entry
from edgewise.core.errors import EdgewiseError, StorageError
from edgewise.core.log import get_logger
from edgewise.core.sqlite import Database
from edgewise.wire.messages import Chunk

log = get_logger(__name__)

_PAUSE_S = 0.003  # between commits: short against a token, long enough that those of several streams meet
_BACKLOG = 64  # chunks of one stream that may wait for the disk


class GroupCommit:
    """Args:
    written: Told in the event loop what has been committed to a job's log.
    """

    def __init__(self, database: Database, written: Callable[[str, Sequence[Entry]], None]) -> None:
        self._database = database
        self._written = written
        self._pending: dict[Lease, list[Chunk]] = {}
        self._writing: dict[Lease, list[Chunk]] = {}
        self._broken: dict[Lease, EdgewiseError] = {}
        self._leases: set[Lease] = set()
        self._task: asyncio.Task[None] | None = None
        self._committed = asyncio.Event()

    def __repr__(self) -> str:
        return f"GroupCommit(pending={sum(map(len, self._pending.values()))})"

    async def append(self, lease: Lease, chunk: Chunk) -> None:
        """Queue a chunk; waits only while the disk is far behind.

        Raises:
            StaleFence: The lease is lost.
            StorageError: The disk refuses; the attempt has to end.
        """
        self._check(lease)
        self._leases.add(lease)
        chunks = self._pending.setdefault(lease, [])
        if chunks and _joinable(chunks[-1], chunk):
            chunks[-1] = _joined(chunks[-1], chunk)
        else:
            chunks.append(chunk)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._write(), name="job-log")
        while len(self._pending.get(lease, ())) > _BACKLOG:
            await self._next_commit()
            self._check(lease)

    async def settle(self, lease: Lease) -> None:
        """Return once everything of the lease is on disk; raises as `append` does."""
        await self.flush(lease)
        self._check(lease)

    async def flush(self, lease: Lease) -> None:
        """Return once everything of the lease was written, or refused."""
        while lease in self._pending or lease in self._writing:
            await self._next_commit()

    def forget(self, lease: Lease) -> None:
        """The lease is over: drop what is not written."""
        self._leases.discard(lease)
        self._pending.pop(lease, None)
        self._broken.pop(lease, None)

    async def stop(self) -> None:
        """Write what is there and end."""
        if self._task is not None:
            await self._task

    def _check(self, lease: Lease) -> None:
        if lease in self._broken:
            raise self._broken[lease]

    async def _next_commit(self) -> None:
        self._committed.clear()
        await self._committed.wait()

    async def _write(self) -> None:
        while self._pending:
            batch, self._pending = self._pending, {}
            self._writing = batch
            try:
                written = await self._database.run(partial(_append_all, batch))
            except EdgewiseError as error:
                written = dict.fromkeys(batch, error)
            except Exception as error:  # a fault of ours: the attempts end, and those who wait hear of it
                log.exception("append_broke")
                written = dict.fromkeys(
                    batch, StorageError(f"The chunks could not be written ({type(error).__name__}).")
                )
            for lease, result in written.items():
                if not isinstance(result, EdgewiseError):
                    self._written(lease.job, result)
                elif lease in self._leases:
                    self._broken[lease] = result
            self._writing = {}
            self._committed.set()
            if self._pending:
                await asyncio.sleep(_PAUSE_S)


def _append_all(batch: dict[Lease, list[Chunk]], db: sqlite3.Connection) -> dict[Lease, list[Entry] | EdgewiseError]:
    """What was written for each lease, or why nothing was: the trouble of one stream does not keep others from the log."""
    return {lease: _append_one(db, lease, chunks) for lease, chunks in batch.items()}


def _append_one(db: sqlite3.Connection, lease: Lease, chunks: list[Chunk]) -> list[Entry] | EdgewiseError:
    db.execute("SAVEPOINT one")
    try:
        result: list[Entry] | EdgewiseError = statements.append(db, lease, chunks) or statements.stale(lease)
    except EdgewiseError as error:
        db.execute("ROLLBACK TO one")
        result = error
    db.execute("RELEASE one")
    return result


def _joinable(one: Chunk, other: Chunk) -> bool:
    return all(
        chunk.preview is None and chunk.facts is None and chunk.tokens is not None for chunk in (one, other)
    ) and (one.logprobs is None) == (other.logprobs is None)


def _joined(one: Chunk, other: Chunk) -> Chunk:
    return one.model_copy(
        update={
            "count": one.count + other.count,
            "tokens": (one.tokens or ()) + (other.tokens or ()),
            "logprobs": None if one.logprobs is None else one.logprobs + (other.logprobs or ()),
        }
    )
