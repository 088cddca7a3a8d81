"""How streams are read: from a place on, out of memory where that reaches back, else out of the table."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncGenerator
from functools import partial

from edgewise.cloud.jobs import statements
from edgewise.cloud.jobs.records import Job
from edgewise.cloud.jobs.statements import Entry
from edgewise.cloud.jobs.tails import Tails
from edgewise.core.errors import RangeNotThere, StreamGone
from edgewise.core.sqlite import Database
from edgewise.wire.messages import Chunk, Final
from edgewise.wire.stream_log import Place

_READ = 32  # chunks that a reader takes from the table at once; a slow reader holds so many


async def follow(
    database: Database, tails: Tails, tenant: str, id: str, after: Place
) -> AsyncGenerator[Chunk | Final, None]:
    """See `JobTable.events`."""
    tail = tails.open(id)
    try:
        version, offset = tail.version, after.offset
        job, seq, entries = await database.run(lambda db: _read_from(db, tenant, id, after))
        while True:
            for _, chunk in entries:
                yield _cut(chunk, after.offset)
                offset = chunk.offset + chunk.count
            seq = entries[-1][0] if entries else seq
            turn = tail.turn
            known = None if len(entries) == _READ or tail.version != version else tail.after(seq)
            if known is None:
                version = tail.version
                job, entries = await database.run(partial(_read_after, tenant=tenant, id=id, seq=seq))
            else:
                entries = known
            if entries:
                continue
            if job.final is not None:
                if not job.kept and offset < job.count:
                    raise _dropped(job)
                yield job.final
                return
            await turn.wait()
    finally:
        tails.close(id)


def _dropped(job: Job) -> StreamGone:
    return StreamGone(
        f"The stream of job {job.id} was dropped after its result had been acknowledged or kept long enough."
    )


def check_place(job: Job, place: Place) -> None:
    """Raises `StreamGone` if the job's content was dropped, `RangeNotThere` if the place is behind its log's end."""
    if not job.kept:
        raise _dropped(job)
    if place.offset > job.count or place.attempt > job.attempt:
        raise RangeNotThere(f"'{place}' is behind the end of the stream, which is {job.place}.", param="from")


def check_start(job: Job, place: Place) -> None:
    """Whether a stream can begin there: raises as `check_place` does, and `StreamGone` below what was acknowledged."""
    check_place(job, place)
    if place.offset < job.first and job.first > job.base:
        raise StreamGone(
            f"Items below {job.first} of job {job.id} were acknowledged and are gone: ask from {job.first} on."
        )


def _read_from(db: sqlite3.Connection, tenant: str, id: str, place: Place) -> tuple[Job, int, list[Entry]]:
    job = statements.by_id(db, tenant, id)
    check_start(job, place)
    seq = statements.number_before(db, id, place.offset)
    return job, seq, statements.entries_after(db, id, seq, _READ)


def _read_after(db: sqlite3.Connection, tenant: str, id: str, seq: int) -> tuple[Job, list[Entry]]:
    return statements.by_id(db, tenant, id), statements.entries_after(db, id, seq, _READ)


def _cut(chunk: Chunk, offset: int) -> Chunk:
    """The chunk without its items below `offset`."""
    skip = offset - chunk.offset
    if skip <= 0 or chunk.count == 0:
        return chunk
    return chunk.model_copy(
        update={
            "offset": offset,
            "count": chunk.count - skip,
            "tokens": None if chunk.tokens is None else chunk.tokens[skip:],
            "text": None if chunk.text is None else chunk.text[skip:],
            "logprobs": None if chunk.logprobs is None else chunk.logprobs[skip:],
        }
    )
