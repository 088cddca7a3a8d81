"""Quotas hold while jobs wait and run: what they may cost is reserved in their rows, and settled by their bills."""

from __future__ import annotations

import asyncio
import signal
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgewise.cloud.intake.streams import READERS, Streams
from edgewise.cloud.jobs.reserve import DEFAULT_STEPS, Most, most_of
from edgewise.cloud.jobs.table import JobTable
from edgewise.cloud.tenants import Tenants
from edgewise.core.clock import FakeClock
from edgewise.core.errors import EngineUnavailable, QueueFull
from edgewise.wire.http import JOBS
from edgewise.wire.messages import Capability, DiffuseWork, GenerateWork
from tests.api.harness import error_of, until
from tests.cloud.service import ANSWER, Cloud, body, cloud_engine, resumable
from tests.cloud.tables import DONE, ME, TINY, job_request, open_table, write
from tests.fakes.engine import FakeEngine

DAY_S = 86_400.0


@pytest.fixture
async def held(tmp_path: Path) -> AsyncIterator[Cloud]:
    """A cloud whose engine answers nothing until it may; each job may take 43 tokens."""
    engine = FakeEngine(script=resumable)
    engine.hold.clear()
    quotas = ("tokens.tokens=100", "price.price=0.1", "tiny.tokens=42", "streams.streams=1")
    async with cloud_engine(tmp_path, engine, quotas=quotas, prices=("tiny=1,1",)) as cloud:
        yield cloud


def refused(response: httpx.Response, what: str) -> str:
    error = error_of(response)
    assert (response.status_code, error["code"], error["param"]) == (429, "rate_limit_exceeded", what)
    return str(error["message"])


@pytest.mark.parametrize("what", ["tokens", "price"])
async def test_what_waits_and_runs_counts_with_the_most_that_it_may_cost(held: Cloud, what: str) -> None:
    mine = held.as_tenant(what)
    ids = [await mine.submit(body(key)) for key in "ab"]
    response = await mine.post(JOBS, body("c"))
    assert "those that wait and run up to" in refused(response, what)
    assert int(response.headers["retry-after"]) < 60  # they end before the day does
    assert (await held.as_tenant("other").post(JOBS, body("c"))).status_code == 202
    assert (await mine.post(JOBS, body("c", max_tokens=5))).status_code == 202  # 94 of 100
    held.engine.hold.set()
    for id in ids:
        await mine.tokens(id)


async def test_a_job_that_ends_sooner_gives_back_what_it_did_not_use(held: Cloud) -> None:
    mine = held.as_tenant("tokens")
    first, second = [await mine.submit(body(key)) for key in "ab"]
    refused(await mine.post(JOBS, body("c")), "tokens")
    assert (await mine.post(f"{JOBS}/{first}/cancel", {})).status_code == 204
    await mine.when(first, "cancelled")
    third = await mine.submit(body("c"))
    held.engine.hold.set()
    for id in (second, third):
        await mine.tokens(id)
    response = await mine.post(JOBS, body("d"))
    assert "has no room for this job" in refused(response, "tokens")
    assert int(response.headers["retry-after"]) <= DAY_S


async def test_a_job_that_never_fits_is_told_what_to_change(held: Cloud) -> None:
    message = refused(await held.as_tenant("tiny").post(JOBS, body()), "tokens")
    assert "of 42 tokens a day it may take up to 43. Lower max_tokens" in message


async def test_seconds_count_by_the_measured_speed_or_as_long_as_an_attempt_has_run(tmp_path: Path) -> None:
    clock = FakeClock()
    table, tenants = await open_table(tmp_path / "cloud.db", clock), Tenants([f"{ME}.seconds=10"])

    async def submit(key: str, model: Capability) -> None:
        request = job_request(key)

        def admit(db: sqlite3.Connection) -> None:
            tenants.admit(db, ME, clock.time(), 0.0, most_of(request.work, model))

        await table.submit(ME, request, model, admit=admit)

    await submit("a", TINY)  # nothing is known of its speed
    assert await table.claim("worker") is not None
    clock.advance(6.5)
    with pytest.raises(QueueFull, match="may take up to 4"):
        await submit("b", TINY.model_copy(update={"speed": 2.0}))  # 8 tokens
    await submit("b", TINY.model_copy(update={"speed": 4.0}))
    clock.advance(2.0)
    with pytest.raises(QueueFull, match=r"run up to 10\.5"):
        await submit("c", TINY)
    await table.close()


def test_the_most_that_a_job_may_cost() -> None:
    model = Capability(model="m", context=100, speed=10.0, prefill=100.0, price_in=1.0, price_out=2.0)
    sampling = {"max_tokens": 40}
    text = GenerateWork(model="m", prompt=(1,) * 50, output=(2,) * 10, sampling=sampling)
    assert most_of(text, model) == Most(80, 0.5 + 3.0, (50 + 2 * 30) / 1000)
    long = GenerateWork(model="m", prompt=(1,) * 90, sampling=sampling)
    assert most_of(long, model).tokens == 100
    assert most_of(GenerateWork(model="m", text="\u00e9" * 20, sampling=sampling), model).tokens == 80
    unknown = Capability(model="m", kind="diffuse", price_out=10.0)
    assert most_of(DiffuseWork(model="m", params={"prompt": "x", "steps": 4}), unknown) == Most(0, 0.0, 0.04)
    assert most_of(DiffuseWork(model="m", params={"prompt": "x"}), unknown).price == DEFAULT_STEPS / 100


# --- deaths and any order ----------------------------------------------------------------------------------------------------

DYING = """
import asyncio, os, signal, sys
from pathlib import Path
from edgewise.core.clock import FakeClock
from tests.cloud.tables import ME, TINY, job_request, open_table, write

async def main():
    table = await open_table(Path(sys.argv[1]), FakeClock())
    for key in "ab":
        await table.submit(ME, job_request(key), TINY)
    await write(table, await table.claim("worker"), 5, 6)
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


async def room(table: JobTable, tenants: Tenants, tokens: int) -> bool:
    """Whether a job of so many tokens could come in now."""

    def look(db: sqlite3.Connection) -> bool:
        try:
            tenants.admit(db, ME, 0.0, 0.0, Most(tokens))
        except QueueFull:
            return False
        return True

    return await table._database.run(look)


async def test_a_service_that_is_killed_neither_loses_nor_leaks_a_reservation(tmp_path: Path) -> None:
    path, tenants = tmp_path / "cloud.db", Tenants([f"{ME}.tokens=100"])
    died = await asyncio.to_thread(subprocess.run, [sys.executable, "-c", DYING, str(path)], timeout=120, check=False)
    assert died.returncode == -signal.SIGKILL
    table = await open_table(path, FakeClock())
    assert (await room(table, tenants, 78), await room(table, tenants, 79)) == (True, False)  # two of 3 + 8
    for _ in "ab":
        claim = await table.claim("worker")
        assert claim is not None
        await table.finish(claim.lease, DONE)
    assert [bill.prompt_tokens + bill.completion_tokens for bill in await table.bills(0)] == [6 + 2]
    assert (await room(table, tenants, 92), await room(table, tenants, 93)) == (True, False)
    await table.close()


Steps = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), st.integers(10, 30)),
        st.tuples(st.just("submit"), st.integers(10, 30)),
        st.tuples(st.just("finish"), st.sampled_from([30, 30, 5])),
        st.tuples(st.just("cancel"), st.integers(0, 30)),
        st.tuples(st.just("break"), st.integers(0, 3)),
        st.tuples(st.just("die"), st.just(0)),
    ),
    min_size=8,
    max_size=25,
)


@settings(max_examples=25, deadline=None)
@given(Steps)
def test_no_order_of_events_spends_more_than_the_quota(steps: list[tuple[str, int]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(_spend(Path(folder) / "cloud.db", steps))


async def _spend(path: Path, steps: list[tuple[str, int]]) -> None:
    limit, clock, tenants = 60, FakeClock(), Tenants([f"{ME}.tokens=60"])
    table = await open_table(path, clock)
    for number, (step, count) in enumerate(steps):
        if step == "submit":
            request = job_request(str(number), sampling={"max_tokens": count})
            most = most_of(request.work, TINY)

            def admit(db: sqlite3.Connection, most: Most = most) -> None:
                tenants.admit(db, ME, clock.time(), 0.0, most)

            try:
                await table.submit(ME, request, TINY, admit=admit)
            except QueueFull:
                continue
        elif step == "die":
            await table.close()
            table = await open_table(path, clock)
        else:
            clock.advance(60.0)  # pauses after failures are over
            claim = await table.claim("worker")
            if claim is None:
                continue
            assert isinstance(claim.request.work, GenerateWork)
            left = claim.request.work.sampling["max_tokens"] - claim.job.count
            await write(table, claim, *range(min(count, left)))
            if step == "break":
                await table.fail(claim.lease, EngineUnavailable("It broke."))
                continue
            if step == "cancel":
                await table.cancel(ME, claim.job.id)
            await table.finish(claim.lease, DONE)
    spent = sum(bill.prompt_tokens + bill.completion_tokens for bill in await table.bills(0))
    assert spent <= limit
    open_jobs = [job for job in await table.latest(100) if not job.ended]
    if not open_jobs:  # nothing is held for jobs that are gone
        assert spent == limit or await room(table, tenants, limit - spent)
    await table.close()


# --- streams -----------------------------------------------------------------------------------------------------------------


async def test_a_tenant_reads_as_many_streams_as_it_may(held: Cloud) -> None:
    mine = held.as_tenant("streams")
    first, second = [await mine.submit(body(key)) for key in "ab"]
    reading = asyncio.create_task(mine.tokens(first))
    assert held.part is not None
    intake = held.part.intake
    await until(lambda: "Streams(1)" in repr(intake._streams))
    response = await mine.get(f"{JOBS}/{second}/stream")
    assert "streams of 1 jobs open" in refused(response, "streams")
    assert int(response.headers["retry-after"]) >= 1
    again = asyncio.create_task(mine.tokens(first))  # one who comes back to the same job is not refused
    held.engine.hold.set()
    assert (await reading)[0] == (await again)[0] == [*ANSWER]
    assert (await mine.tokens(second))[0] == [*ANSWER]


async def test_places_come_back_also_of_streams_that_nobody_ever_read(held: Cloud) -> None:
    assert held.part is not None
    intake = held.part.intake
    id = await held.as_tenant("streams").submit()
    for _ in range(2 * READERS):
        events = intake.events("streams", id)
        del events
    events = intake.events("streams", id)
    reader = asyncio.ensure_future(anext(events))
    await asyncio.sleep(0)
    with pytest.raises(QueueFull):
        intake.events("streams", "job_other")
    reader.cancel()
    await asyncio.wait({reader})
    await intake.events("streams", "job_other").aclose()


def test_one_job_is_not_read_without_end() -> None:
    streams = Streams(lambda tenant: 2 if tenant == "few" else None)
    places = [streams.open("many", "a") for _ in range(READERS)]
    with pytest.raises(QueueFull):
        streams.open("many", "a")
    places.pop().release()
    with streams.open("many", "a"), streams.open("few", "a"), streams.open("few", "b"):
        with pytest.raises(QueueFull):
            streams.open("few", "c")
        streams.open("few", "b").release()
    del places
    assert repr(streams) == "Streams(0)"
