"""A job goes only where it may, whatever happens in which order; what was told is on disk, over kill -9."""

from __future__ import annotations

import asyncio
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgewise.core.clock import FakeClock
from edgewise.core.errors import InvalidRequest, KeyReused, NotFound, QueueFull, StorageError
from edgewise.core.sqlite import Database
from edgewise.edge.outbox.job import Order
from edgewise.edge.outbox.schema import open_outbox
from edgewise.edge.outbox.store import MAX_CRASHES, Store
from edgewise.wire.messages import TERMINAL

DONE = {"status_code": 200, "body": {"edgewise": {"stages": []}}}
HOOK = "https://receiver.example/hook"


def order(**fields: Any) -> Order:
    return Order(**{"owner": "me", "url": "/v1/completions", "body": {"prompt": "a"}, "ttl_s": 60.0, **fields})


@pytest.fixture
def database() -> Iterator[Database]:
    database = open_outbox(None)
    yield database
    database.close()


# --- what may follow what --------------------------------------------------------------------------------------------------

STEPS = [
    "begin",
    "finish",
    "fail",
    "postpone",
    "cancel",
    "pass",
    "expire",
    "crash",
    "stop",
    "sent",
    "not_sent",
    "give_up",
]
FROM = {
    "begin": {"queued"},
    "finish": {"running"},
    "fail": {"running"},
    "postpone": {"running"},
}
TO = {"begin": "running", "finish": "succeeded", "fail": "failed", "postpone": "queued"}


class Model:
    """The same job, in a few lines."""

    def __init__(self, *, hook: bool) -> None:
        self.state, self.delivery, self.crashes, self.age, self.hook = "queued", "none", 0, 0.0, hook

    def end(self, state: str) -> None:
        self.state, self.delivery = state, "pending" if self.hook else "none"

    def step(self, name: str) -> None:
        if name in FROM:
            if self.state not in FROM[name]:
                return
            if TO[name] in TERMINAL:
                self.end(TO[name])
            else:
                self.state = TO[name]
        elif name == "pass":
            self.age += 25.0
        elif name == "cancel" and self.state not in TERMINAL:
            self.end("cancelled")
        elif name == "expire" and self.state not in TERMINAL and self.age >= 60.0:
            self.end("expired")
        elif name in ("crash", "stop") and self.state == "running":
            self.crashes += name == "crash"
            self.state = "queued"
            if self.crashes >= MAX_CRASHES:
                self.end("failed")
        elif name in ("sent", "give_up") and self.delivery == "pending":
            self.delivery = "delivered" if name == "sent" else "failed"


async def take(store: Store, clock: FakeClock, id: str, name: str) -> None:
    steps: dict[str, Callable[[], Awaitable[Any]]] = {
        "begin": lambda: store.begin(id),
        "finish": lambda: store.finish(id, "succeeded", DONE),
        "fail": lambda: store.finish(id, "failed", DONE),
        "postpone": lambda: store.postpone(id, "The link is down.", 5.0),
        "cancel": lambda: store.cancel("me", id),
        "expire": lambda: store.expire(),
        "crash": lambda: store.recover(),
        "stop": lambda: store.recover(crashed=False),
        "sent": lambda: store.sent(id),
        "not_sent": lambda: store.not_sent(id, "The receiver answered 500.", again_s=9.0),
        "give_up": lambda: store.not_sent(id, "The receiver answered 410.", again_s=None),
    }
    if name == "pass":
        clock.advance(25.0)
    else:
        await steps[name]()


@settings(deadline=None, max_examples=120)
@given(steps=st.lists(st.sampled_from(STEPS), max_size=24), hook=st.booleans())
async def test_a_job_goes_only_where_it_may(steps: list[str], hook: bool) -> None:
    clock, database = FakeClock(), open_outbox(None)
    store = Store(database, clock=clock)
    job, fresh = await store.add(order(deliver=HOOK if hook else "poll"))
    assert fresh
    model, ended_as = Model(hook=hook), None
    for name in steps:
        await take(store, clock, job.id, name)
        model.step(name)
        now = await store.get("me", job.id)
        assert (now.state, now.delivery, now.crashes) == (model.state, model.delivery, model.crashes)
        assert (now.response is not None) == (now.body is None) == now.ended == (now.ended_at is not None)
        assert (now.delivered_at is not None) == (now.delivery == "delivered")
        if ended_as is not None:
            assert (now.state, now.response, now.ended_at) == ended_as
        if now.ended:
            ended_as = (now.state, now.response, now.ended_at)
    due = [one.id for one in await store.due(9, [])]
    assert due == [] or (due == [job.id] and model.state == "queued")
    clock.advance(100.0)
    pending = [one.id for one in await store.to_send(9, [])]
    assert pending == ([job.id] if model.delivery == "pending" else [])
    database.close()


async def test_the_most_urgent_goes_first_and_what_is_under_way_is_left_out(database: Database) -> None:
    store = Store(database)
    bulk, _ = await store.add(order(priority="bulk"))
    first, _ = await store.add(order())
    second, _ = await store.add(order())
    assert [job.id for job in await store.due(2, [])] == [first.id, second.id]
    assert [job.id for job in await store.due(2, [first.id])] == [second.id, bulk.id]


async def test_what_waits_is_not_due_before_its_time_unless_woken(database: Database) -> None:
    clock = FakeClock()
    store = Store(database, clock=clock)
    job, _ = await store.add(order(ttl_s=600.0))
    await store.begin(job.id)
    await store.postpone(job.id, "The link is down.", 30.0)
    assert await store.due(1, []) == []
    assert await store.next_due_s() == 30.0
    assert (await store.get("me", job.id)).waiting == "The link is down."
    await store.wake()
    assert [one.id for one in await store.due(1, [])] == [job.id]


# --- one key, one job ------------------------------------------------------------------------------------------------------


async def test_a_key_is_one_job_of_its_owner(database: Database) -> None:
    store = Store(database)
    job, _ = await store.add(order(key="k"))
    again, fresh = await store.add(order(key="k", seed=7, ttl_s=9.0))
    assert (again.id, fresh) == (job.id, False)
    other, fresh = await store.add(order(key="k", owner="you"))
    assert fresh
    assert other.id != job.id
    with pytest.raises(KeyReused, match=job.id):
        await store.add(order(key="k", body={"prompt": "b"}))
    with pytest.raises(NotFound):
        await store.get("you", job.id)
    await store.begin(job.id)
    await store.finish(job.id, "succeeded", DONE)
    again, fresh = await store.add(order(key="k"))
    assert (again.state, again.response, fresh) == ("succeeded", DONE, False)


async def test_a_deleted_job_is_forgotten_with_its_key_but_not_while_it_is_open(database: Database) -> None:
    store = Store(database)
    job, _ = await store.add(order(key="k", deliver=HOOK))
    with pytest.raises(InvalidRequest, match="cancel it"):
        await store.delete("me", job.id)
    await store.cancel("me", job.id)
    await store.delete("me", job.id)
    assert await store.to_send(1, []) == []
    _, fresh = await store.add(order(key="k", deliver=HOOK))
    assert fresh


# --- limits ----------------------------------------------------------------------------------------------------------------


async def test_limits_are_refused_by_name_and_results_never_are(database: Database) -> None:
    store = Store(database, max_open=2, total_bytes=100)
    job, _ = await store.add(order(body={"prompt": "a" * 40}))
    with pytest.raises(StorageError, match=r"outbox\.total_bytes: 100"):
        await store.add(order(body={"prompt": "a" * 40}))
    await store.add(order())
    with pytest.raises(QueueFull, match=r"outbox\.max_open"):
        await store.add(order())
    await store.add(order(owner="you", body={}))  # another owner's count is another one
    await store.begin(job.id)
    assert await store.finish(job.id, "succeeded", {"status_code": 200, "body": {"text": "a" * 200}})
    with pytest.raises(StorageError):
        await store.add(order(owner="them", body={}))


async def test_what_ended_is_forgotten_after_its_time_but_never_before_it_is_delivered(database: Database) -> None:
    clock = FakeClock()
    store = Store(database, clock=clock)
    polled, _ = await store.add(order())
    hooked, _ = await store.add(order(deliver=HOOK))
    waiting, _ = await store.add(order(ttl_s=1e6))
    for job in (polled, hooked):
        await store.begin(job.id)
        await store.finish(job.id, "succeeded", DONE)
    clock.advance(100.0)
    assert await store.prune(200.0) == 0
    assert await store.prune(50.0) == 1
    assert [job.id for job in await store.of_owner("me")] == [hooked.id, waiting.id]
    await store.sent(hooked.id)
    assert await store.prune(50.0) == 0  # it can be looked up for as long after its delivery
    clock.advance(60.0)
    assert await store.prune(50.0) == 1


async def test_a_clock_that_is_not_set_neither_expires_nor_prunes(database: Database) -> None:
    clock = FakeClock(now=100.0)
    store = Store(database, clock=clock)
    job, _ = await store.add(order())
    clock.advance(1000.0)
    assert await store.expire() == []
    clock.advance(1_800_000_000.0)  # a time server was reached
    assert await store.expire() == []
    assert (await store.get("me", job.id)).expires_at == clock.time() + 60.0
    clock.advance(60.0)
    assert await store.expire() == [job.id]


@pytest.mark.parametrize("jump", [-2e7, 2e7])
async def test_a_clock_that_is_set_ends_nothing_and_lets_nothing_wait(database: Database, jump: float) -> None:
    clock = FakeClock()
    store = Store(database, clock=clock)
    waiting, running, ended = [(await store.add(order(deliver=HOOK)))[0].id for _ in range(3)]
    for id in (waiting, running, ended):
        await store.begin(id)
    await store.postpone(waiting, "The link is down.", 5.0)
    await store.finish(ended, "succeeded", DONE)
    await store.not_sent(ended, "The receiver answered 500.", again_s=5.0)
    clock.advance(3.0)
    clock.set(clock.time() + jump)
    fresh, _ = await store.add(order())
    assert await store.expire() == []
    assert [job.id for job in await store.due(9, [])] == [fresh.id]
    assert await store.next_due_s() == 2.0
    clock.advance(2.0)
    assert [job.id for job in await store.due(9, [])] == [waiting, fresh.id]
    assert [job.id for job in await store.to_send(9, [])] == [ended]
    clock.advance(55.0)
    assert await store.expire() == [waiting, running]
    clock.advance(3.0)
    assert await store.expire() == [fresh.id]


async def test_a_clock_that_was_set_back_while_nothing_ran_lets_no_job_wait_for_years(database: Database) -> None:
    clock = FakeClock()
    job, _ = await Store(database, clock=clock).add(order())
    clock.set(clock.time() - 2e7)
    store = Store(database, clock=clock)
    assert await store.expire() == []
    assert [one.id for one in await store.due(1, [])] == [job.id]
    clock.advance(60.0)
    assert await store.expire() == [job.id]


# --- kill -9 ---------------------------------------------------------------------------------------------------------------

WORKER = """
import asyncio, sys
from pathlib import Path
from edgewise.edge.outbox.schema import open_outbox
from edgewise.edge.outbox.store import Store

async def work(path, received):
    store = Store(open_outbox(path))
    await store.recover(crashed=False)
    while True:
        for job in await store.due(3, []):
            if await store.begin(job.id):
                await store.finish(job.id, "succeeded", {"status_code": 200, "body": {"seed": job.seed}})
        for job in await store.to_send(3, []):
            with received.open("a") as log:
                log.write(f"{job.id} {job.response['body']['seed']}\\n")
            await store.sent(job.id)
        await asyncio.sleep(0)

asyncio.run(work(Path(sys.argv[1]), Path(sys.argv[2])))
"""
JOBS, KILLS = 100, 6


def test_over_kills_every_job_ends_and_arrives_and_only_a_kill_repeats_a_delivery(tmp_path: Path) -> None:
    path, received = tmp_path / "outbox.db", tmp_path / "received"
    received.touch()
    asyncio.run(fill(path))
    rng = random.Random(4)
    for _ in range(KILLS):
        worker = subprocess.Popen([sys.executable, "-c", WORKER, str(path), str(received)])
        began = received.stat().st_size
        limit = time.monotonic() + 60
        while received.stat().st_size < began + 40 and time.monotonic() < limit and open_jobs(path):
            time.sleep(0.01)
        time.sleep(rng.uniform(0, 0.03))
        worker.send_signal(signal.SIGKILL)
        worker.wait()
    worker = subprocess.Popen([sys.executable, "-c", WORKER, str(path), str(received)])
    limit = time.monotonic() + 60
    while open_jobs(path) and time.monotonic() < limit:
        time.sleep(0.05)
    worker.send_signal(signal.SIGKILL)
    worker.wait()
    lines = received.read_text().splitlines()
    assert len(set(lines)) == JOBS  # each result, and never another one for the same job
    assert {line.split()[1] for line in lines} == {str(seed) for seed in range(JOBS)}
    assert len(lines) - JOBS <= KILLS  # a kill between the receiver's word and ours is all that repeats one
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
        assert connection.execute("SELECT DISTINCT state, delivery FROM jobs").fetchall() == [
            ("succeeded", "delivered")
        ]
    connection.close()


async def fill(path: Path) -> None:
    database = open_outbox(path)
    store = Store(database)
    for seed in range(JOBS):
        await store.add(order(seed=seed, deliver=HOOK, ttl_s=3600.0))
    database.close()


def open_jobs(path: Path) -> int:
    connection = sqlite3.connect(path)
    try:
        return int(connection.execute("SELECT count(*) FROM jobs WHERE delivery != 'delivered'").fetchone()[0])
    finally:
        connection.close()
