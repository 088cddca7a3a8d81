"""Job tables over real files, and work to put into them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from edgewise.cloud.jobs.records import Claim, Ending
from edgewise.cloud.jobs.schema import open_jobs
from edgewise.cloud.jobs.table import JobTable
from edgewise.core.clock import FakeClock
from edgewise.wire.messages import Capability, Chunk, Final, GenerateWork, JobRequest
from edgewise.wire.stream_log import START, Place

ME = "me"
TINY = Capability(model="tiny", price_in=1.0, price_out=10.0)
DONE = Ending(state="succeeded", finish="stop")


def job_request(key: str = "k", **fields: Any) -> JobRequest:
    """A job of three prompt tokens; fields of the work beside those of the request."""
    work: dict[str, Any] = {"model": "tiny", "prompt": (1, 2, 3), "sampling": {"max_tokens": 8}}
    work |= {name: fields.pop(name) for name in ("model", "prompt", "output", "sampling", "digest") if name in fields}
    return JobRequest(key=key, device="d", work=GenerateWork(**work), **fields)


async def open_table(path: Path, clock: FakeClock, **options: Any) -> JobTable:
    """As a service opens it at its start."""
    table = JobTable(open_jobs(path), clock=clock, **options)
    await table.recover()
    return table


async def write(table: JobTable, claim: Claim, *tokens: int) -> None:
    """Tokens, one a chunk, behind the log's end at the time of the claim; all on disk afterwards."""
    for offset, token in enumerate(tokens, claim.job.count):
        await table.append(claim.lease, Chunk(attempt=claim.lease.attempt, offset=offset, count=1, tokens=(token,)))
    await table.settle(claim.lease)


async def read(table: JobTable, id: str, after: Place = START) -> tuple[list[int], Final]:
    """The rest of a stream that has ended."""
    tokens: list[int] = []
    async for event in table.events(ME, id, after):
        if isinstance(event, Final):
            return tokens, event
        assert event.offset == max(after.offset, event.offset)
        tokens += event.tokens or ()
    raise AssertionError("a stream ended without its final record")
