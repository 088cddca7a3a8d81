from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pytest

from edgewise.cloud.jobs.records import Claim, Ending
from edgewise.cloud.jobs.schema import MIGRATIONS
from edgewise.cloud.jobs.table import JobTable
from edgewise.core.clock import FakeClock
from edgewise.core.errors import (
    EngineUnavailable,
    InvalidRequest,
    NotFound,
    RangeNotThere,
    StaleFence,
    StorageError,
    StreamGone,
)
from edgewise.core.sqlite import Database
from edgewise.wire.messages import Blob, Chunk
from edgewise.wire.stream_log import Place, StreamHash
from tests.cloud.tables import DONE, ME, TINY, job_request, open_table, read, write

Result = TypeVar("Result")
BROKEN = EngineUnavailable("The engine is gone.")


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def table(tmp_path: Path, clock: FakeClock) -> AsyncIterator[JobTable]:
    table = await open_table(tmp_path / "cloud.db", clock)
    yield table
    await table.close()


async def claimed(table: JobTable) -> Claim:
    claim = await table.claim("worker")
    assert claim is not None
    return claim


def digest(*tokens: int) -> str:
    hashed = StreamHash()
    hashed.tokens(tokens)
    return hashed.hexdigest()


# --- one job, once -----------------------------------------------------------------------------------------------------------


async def test_the_same_key_is_the_same_job_and_answers_from_the_table(table: JobTable) -> None:
    job, new = await table.submit(ME, job_request(), TINY)
    again, new_again = await table.submit(ME, job_request(), TINY)
    assert (new, new_again, again.id) == (True, False, job.id)
    claim = await claimed(table)
    await write(table, claim, 5, 6)
    await table.finish(claim.lease, DONE)
    late, _ = await table.submit(ME, job_request(), TINY)
    assert (late.id, late.state, late.count) == (job.id, "succeeded", 2)
    assert await table.claim("worker") is None
    assert [bill.jobs for bill in await table.bills(0)] == [1]


async def test_keys_are_those_of_a_tenant_and_a_device(table: JobTable) -> None:
    jobs = [
        (await table.submit(tenant, job_request().model_copy(update={"device": device}), TINY))[0].id
        for tenant in ("one", "two")
        for device in ("a", "b")
    ]
    assert len(set(jobs)) == 4


async def test_a_job_is_its_tenants(table: JobTable) -> None:
    job, _ = await table.submit(ME, job_request(), TINY)
    for ask in (table.get, table.cancel, lambda tenant, id: table.ack(tenant, id, Place(0, 0))):
        with pytest.raises(NotFound):
            await ask("other", job.id)
    with pytest.raises(NotFound):
        await anext(table.events("other", job.id))


async def test_a_refused_job_leaves_nothing(table: JobTable) -> None:
    def refuse(db: object) -> None:
        raise BROKEN

    with pytest.raises(EngineUnavailable):
        await table.submit(ME, job_request(), TINY, admit=refuse)
    assert await table.latest(10) == []


# --- leases ------------------------------------------------------------------------------------------------------------------


async def test_a_stale_number_writes_nothing(table: JobTable, clock: FakeClock) -> None:
    job, _ = await table.submit(ME, job_request(), TINY)
    slow = await claimed(table)
    await write(table, slow, 5, 6)
    clock.advance(60)
    assert await table.tick() == [job.id]
    clock.advance(60)
    second = await claimed(table)
    assert (second.lease.attempt, second.tokens) == (2, (5, 6))
    for late in (
        table.finish(slow.lease, DONE),
        table.fail(slow.lease, BROKEN),
        table.give_back(slow.lease),
        write(table, replace(slow, job=second.job), 9),
    ):
        with pytest.raises(StaleFence):
            await late
    assert await table.renew([slow.lease, second.lease]) == [slow.lease]
    await write(table, second, 7)
    await table.finish(second.lease, DONE)
    tokens, final = await read(table, job.id)
    assert (tokens, final.count, final.sha256) == ([5, 6, 7], 3, digest(5, 6, 7))


async def test_a_renewed_lease_holds(table: JobTable, clock: FakeClock) -> None:
    await table.submit(ME, job_request(), TINY)
    claim = await claimed(table)
    for _ in range(10):
        clock.advance(10)
        assert await table.renew([claim.lease]) == []
        assert await table.tick() == []


async def test_chunks_that_do_not_begin_at_the_logs_end_are_refused(table: JobTable) -> None:
    await table.submit(ME, job_request(), TINY)
    claim = await claimed(table)
    await table.append(claim.lease, Chunk(attempt=1, offset=3, count=1, tokens=(1,)))
    with pytest.raises(StaleFence):
        await table.settle(claim.lease)


async def test_a_given_back_job_goes_on_at_its_logs_end(table: JobTable) -> None:
    job, _ = await table.submit(ME, job_request(output=(8, 9)), TINY)
    claim = await claimed(table)
    assert (claim.tokens, claim.job.count) == ((8, 9), 2)
    await write(table, claim, 5)
    await table.give_back(claim.lease)
    second = await claimed(table)
    assert (second.tokens, second.job.failures) == ((8, 9, 5), 0)
    await write(table, second, 6)
    final = (await table.finish(second.lease, DONE)).final
    assert final is not None
    assert (final.count, final.usage.completion_tokens, final.sha256) == (4, 2, digest(8, 9, 5, 6))
    assert (await read(table, job.id))[0] == [5, 6]


async def test_attempts_that_add_nothing_end_the_job(tmp_path: Path, clock: FakeClock) -> None:
    table = await open_table(tmp_path / "cloud.db", clock, max_attempts=3)
    job, _ = await table.submit(ME, job_request(), TINY)
    states = []
    for tokens in ((), (), (5,), (), (), ()):  # one that adds something begins the count anew
        clock.advance(60)
        claim = await claimed(table)
        await write(table, claim, *tokens)
        states.append((await table.fail(claim.lease, BROKEN)).state)
    assert states == ["queued"] * 5 + ["failed"]
    final = (await table.get(ME, job.id)).final
    assert final is not None
    assert (final.error_code, final.retryable, final.usage.price) == ("engine_unavailable", True, 0.0)
    await table.close()


async def test_a_failed_attempt_is_followed_after_a_pause(table: JobTable, clock: FakeClock) -> None:
    await table.submit(ME, job_request(), TINY)
    claim = await claimed(table)
    await table.fail(claim.lease, EngineUnavailable("later", retry_after_s=7))
    clock.advance(6.9)
    assert await table.claim("worker") is None
    clock.advance(0.2)
    assert await table.claim("worker") is not None


class FullDisk(Database):
    """A database whose disk can be full: a test double of the disk alone."""

    full = False

    async def run(self, work: Callable[[sqlite3.Connection], Result]) -> Result:
        if self.full:
            raise StorageError("the disk is full")
        return await super().run(work)


async def test_a_full_disk_ends_the_attempt_and_nobody_has_seen_what_was_not_written(
    tmp_path: Path, clock: FakeClock
) -> None:
    database = FullDisk(tmp_path / "cloud.db", MIGRATIONS)
    table = JobTable(database, clock=clock)
    await table.recover()
    job, _ = await table.submit(ME, job_request(), TINY)
    claim = await claimed(table)
    await write(table, claim, 1, 2)
    reader = asyncio.create_task(read(table, job.id))
    await asyncio.sleep(0)
    database.full = True
    with pytest.raises(StorageError):
        await write(table, replace(claim, job=replace(claim.job, count=2)), 3)
    with pytest.raises(StorageError):
        await table.fail(claim.lease, StorageError("the disk is full"))
    database.full = False
    clock.advance(60)
    await table.tick()
    clock.advance(60)
    second = await claimed(table)
    assert second.tokens == (1, 2)
    await write(table, second, 4)
    await table.finish(second.lease, DONE)
    tokens, final = await reader
    assert (tokens, final.sha256) == ([1, 2, 4], digest(1, 2, 4))
    await table.close()


async def test_the_trouble_of_one_stream_keeps_no_other_from_the_log(table: JobTable) -> None:
    for key in "ab":
        await table.submit(ME, job_request(key), TINY)
    one, two = await claimed(table), await claimed(table)
    nowhere = Blob(sha256="0" * 64, bytes=1)
    await table.append(one.lease, Chunk(attempt=1, offset=0, count=1, preview=nowhere))
    await table.append(two.lease, Chunk(attempt=1, offset=0, count=1, tokens=(7,)))
    await table.settle(two.lease)
    with pytest.raises(InvalidRequest):
        await table.settle(one.lease)
    assert ((await table.get(ME, one.job.id)).count, (await table.get(ME, two.job.id)).count) == (0, 1)
    await table.append(two.lease, Chunk.model_construct(attempt=1, offset=1, count=1, text="\ud800"))  # as none is made
    with pytest.raises(StorageError):
        await table.settle(two.lease)


# --- order -------------------------------------------------------------------------------------------------------------------


async def test_classes_first_then_tenants_in_turn(table: JobTable) -> None:
    for number in range(3):
        await table.submit("many", job_request(f"m{number}"), TINY)
    await table.submit("few", job_request("f"), TINY)
    await table.submit("many", job_request("now", priority="realtime"), TINY)
    await table.submit("many", job_request("later", priority="bulk"), TINY)
    order = [(await claimed(table)).job.key for _ in range(6)]
    assert order == ["now", "f", "m0", "m1", "m2", "later"]


async def test_waiting_makes_urgent_but_never_realtime(table: JobTable, clock: FakeClock) -> None:
    await table.submit(ME, job_request("old", priority="bulk"), TINY)
    clock.advance(600)
    await table.submit(ME, job_request("new"), TINY)
    await table.submit(ME, job_request("now", priority="realtime"), TINY)
    assert [(await claimed(table)).job.key for _ in range(3)] == ["now", "old", "new"]


# --- streams -----------------------------------------------------------------------------------------------------------------


async def test_readers_follow_a_stream_from_any_place(table: JobTable) -> None:
    job, _ = await table.submit(ME, job_request(), TINY)
    claim = await claimed(table)
    readers = [asyncio.create_task(read(table, job.id, Place(0, 0))) for _ in range(3)]
    await asyncio.sleep(0)
    await write(table, claim, *range(20, 320))
    late = asyncio.create_task(read(table, job.id, Place(1, 290)))
    await asyncio.sleep(0.01)
    await write(table, replace(claim, job=await table.get(ME, job.id)), *range(320, 600))
    await table.finish(claim.lease, DONE)
    for reader in readers:
        tokens, final = await reader
        assert tokens == [*range(20, 600)]
        assert final.count == 580
    assert (await late)[0] == [*range(310, 600)]


async def test_a_chunk_is_cut_at_the_place_that_was_asked(table: JobTable) -> None:
    job, _ = await table.submit(ME, job_request(), TINY)
    claim = await claimed(table)
    logprobs = tuple([-float(n), []] for n in range(5))
    await table.append(claim.lease, Chunk(attempt=1, offset=0, count=5, tokens=(1, 2, 3, 4, 5), logprobs=logprobs))
    await table.finish(claim.lease, DONE)
    chunk = await anext(table.events(ME, job.id, Place(1, 3)))
    assert isinstance(chunk, Chunk)
    assert (chunk.offset, chunk.count, chunk.tokens, chunk.logprobs) == (3, 2, (4, 5), logprobs[3:])


async def test_places_behind_the_end_and_below_the_beginning(table: JobTable) -> None:
    job, _ = await table.submit(ME, job_request(), TINY)
    claim = await claimed(table)
    await write(table, claim, 1, 2, 3)
    for place in (Place(1, 4), Place(2, 0)):
        with pytest.raises(RangeNotThere):
            await anext(table.events(ME, job.id, place))
        with pytest.raises(RangeNotThere):
            await table.ack(ME, job.id, place)
    await table.ack(ME, job.id, Place(1, 2))
    with pytest.raises(StreamGone, match="ask from 2"):
        await anext(table.events(ME, job.id, Place(1, 1)))
    await table.ack(ME, job.id, Place(1, 1))  # an older word changes nothing
    await table.finish(claim.lease, DONE)
    assert (await read(table, job.id, Place(1, 2)))[0] == [3]


async def test_what_was_acknowledged_is_still_there_for_the_next_attempt(table: JobTable) -> None:
    job, _ = await table.submit(ME, job_request(), TINY)
    claim = await claimed(table)
    await write(table, claim, 1, 2, 3)
    await table.ack(ME, job.id, Place(1, 3))
    await table.give_back(claim.lease)
    assert (await claimed(table)).tokens == (1, 2, 3)


async def test_a_slow_reader_is_told_that_the_rest_is_gone(table: JobTable) -> None:
    job, _ = await table.submit(ME, job_request(), TINY)
    claim = await claimed(table)
    await write(table, claim, 1)
    slow = table.events(ME, job.id)
    assert isinstance(await anext(slow), Chunk)
    await write(table, replace(claim, job=await table.get(ME, job.id)), 2)
    await table.finish(claim.lease, DONE)
    await table.ack(ME, job.id, Place(1, 2), done=True)
    with pytest.raises(StreamGone):
        await anext(slow)


async def test_a_cancel_reaches_the_worker_that_has_the_job(table: JobTable, clock: FakeClock) -> None:
    job, _ = await table.submit(ME, job_request(), TINY)
    told: list[str] = []
    old = await table.claim("old", lambda _: told.append("old"))
    assert old is not None
    clock.advance(60)
    await table.tick()
    clock.advance(60)
    await table.claim("new", lambda _: told.append("new"))
    with pytest.raises(StaleFence):
        await table.finish(old.lease, DONE)
    await table.cancel(ME, job.id)
    assert told == ["new"]


# --- the end -----------------------------------------------------------------------------------------------------------------


async def test_content_goes_with_the_acknowledgement(tmp_path: Path, clock: FakeClock) -> None:
    table = await open_table(tmp_path / "cloud.db", clock)
    marker = tuple(range(70_001, 70_031))
    job, _ = await table.submit(ME, job_request(prompt=marker), TINY)
    claim = await claimed(table)
    await write(table, claim, 81_234)
    await table.finish(claim.lease, replace(DONE, facts={"prompt_tokens": 3}))
    await table.close()
    assert b"70001" in (tmp_path / "cloud.db").read_bytes()
    table = await open_table(tmp_path / "cloud.db", clock)
    await table.ack(ME, job.id, Place(1, 1))
    assert (await table.get(ME, job.id)).kept
    left = await table.ack(ME, job.id, Place(1, 1), done=True)
    assert left.final is not None
    assert (left.kept, left.state, left.final.sha256, left.final.facts) == (False, "succeeded", None, None)
    assert left.final.usage.completion_tokens == 1
    assert await table.work_of(job.id) is None
    with pytest.raises(StreamGone):
        await anext(table.events(ME, job.id))
    assert b"70001" in (tmp_path / "cloud.db-wal").read_bytes()
    await table.sweep()
    stored = b"".join((tmp_path / name).read_bytes() for name in ("cloud.db", "cloud.db-wal"))
    assert b"70001" not in stored
    assert b"81234" not in stored
    await table.close()


async def test_content_is_kept_as_long_as_the_setting_says(tmp_path: Path, clock: FakeClock) -> None:
    table = await open_table(tmp_path / "cloud.db", clock, retain_s=100.0, unclaimed_s=1000.0)
    acked, _ = await table.submit(ME, job_request("acked"), TINY)
    left, _ = await table.submit(ME, job_request("left"), TINY)
    for _ in range(2):
        claim = await claimed(table)
        await table.finish(claim.lease, DONE)
    await table.ack(ME, acked.id, Place(1, 0), done=True)
    clock.advance(99)
    assert await table.sweep() == 0
    clock.advance(2)
    assert await table.sweep() == 1
    assert [(await table.get(ME, job.id)).kept for job in (acked, left)] == [False, True]
    clock.advance(900)
    assert await table.sweep() == 1
    clock.advance(31 * 86_400)
    await table.sweep()
    assert await table.latest(10) == []
    assert sum(bill.jobs for bill in await table.bills(0)) == 2
    await table.close()


async def test_cancel(table: JobTable) -> None:
    waiting, _ = await table.submit(ME, job_request("waiting"), TINY)
    assert (await table.cancel(ME, waiting.id)).state == "cancelled"
    running, _ = await table.submit(ME, job_request("running"), TINY)
    told: list[str] = []
    claim = await table.claim("worker", told.append)
    assert claim is not None
    await table.cancel(ME, running.id)
    assert told == [running.id]
    await table.give_back(claim.lease)  # its worker ended before it could say so
    assert (await table.get(ME, running.id)).state == "cancelled"
    assert await table.claim("worker") is None


async def test_time_to_live(table: JobTable, clock: FakeClock) -> None:
    job, _ = await table.submit(ME, job_request(ttl_ms=10_000), TINY)
    clock.advance(9)
    assert await table.tick() == []
    clock.advance(2)
    assert await table.tick() == [job.id]
    final = (await table.get(ME, job.id)).final
    assert final is not None
    assert (final.state, final.error_code) == ("expired", "deadline_exceeded")


async def test_time_to_live_over_a_restart_is_that_of_the_wall_clock(tmp_path: Path) -> None:
    before = FakeClock(1_000_000.0)
    table = await open_table(tmp_path / "cloud.db", before)
    await table.submit(ME, job_request(ttl_ms=10_000), TINY)
    await table.close()
    for now, left in ((1_000_004.0, 6.0), (900_000.0, 10.0), (1_000_011.0, 0.0)):
        table = await open_table(tmp_path / "cloud.db", FakeClock(now))
        claim = await claimed(table)
        assert claim.deadline_s == pytest.approx(left)
        await table.give_back(claim.lease)
        await table.close()


async def test_the_bill(table: JobTable, clock: FakeClock) -> None:
    await table.submit(ME, job_request(prompt=(1,) * 100), TINY)
    claim = await claimed(table)
    await write(table, claim, *range(50))
    await table.fail(claim.lease, BROKEN, busy_s=1.0)
    clock.advance(60)
    claim = await claimed(table)
    ending = Ending(state="succeeded", finish="length", busy_s=2.0)
    await table.finish(claim.lease, ending)
    (bill,) = await table.bills(0, ME)
    assert (bill.prompt_tokens, bill.completion_tokens, bill.busy_s) == (100, 50, 3.0)
    assert bill.price == pytest.approx(0.1 + 0.5)


async def test_what_was_made_before_a_cancel_is_paid_also_while_no_worker_has_it(table: JobTable) -> None:
    job, _ = await table.submit(ME, job_request(), TINY)
    claim = await claimed(table)
    await write(table, claim, 1, 2)
    await table.give_back(claim.lease)
    final = (await table.cancel(ME, job.id)).final
    assert final is not None
    assert (final.usage.prompt_tokens, final.usage.completion_tokens) == (3, 2)
    assert final.usage.price == pytest.approx((3 * 1.0 + 2 * 10.0) / 1000)
    unused, _ = await table.submit(ME, job_request("unused"), TINY)
    final = (await table.cancel(ME, unused.id)).final
    assert final is not None
    assert final.usage.price == 0
