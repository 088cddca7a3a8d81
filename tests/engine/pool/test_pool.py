"""The pool around engines that a test orders about: who waits, who shares, what is counted, what is left over."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace

import pytest
import pytest_asyncio

from edgewise.core.errors import (
    BadModelFile,
    DeadlineExceeded,
    EngineFault,
    EngineUnavailable,
    ModelNotFound,
    OutOfMemory,
    QueueFull,
    ShuttingDown,
)
from edgewise.engine.encoders.climbs import BEGUN, ENDED
from edgewise.engine.events import EngineEvent
from edgewise.engine.fit import Needs
from edgewise.engine.pool.book import PoolBook
from edgewise.engine.pool.pool import EnginePool
from edgewise.engine.pool.pooled import PooledEngine
from edgewise.engine.request import GenerateRequest, SamplingParams
from tests.api.harness import until
from tests.fakes.pool import FakeManagedEngine, FakeWorks, config_of

BUDGET = 100
NEEDS = Needs(minimal=60, full=60, context=512)


class Pool:
    """A pool with room for one of the models "a" and "b", and its works."""

    def __init__(
        self,
        *,
        wait_s: float = 30.0,
        retry_s: float = 30.0,
        keep_alive_s: float = 300.0,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.works = FakeWorks(budget=BUDGET)
        self.events: list[tuple[str, EngineEvent]] = []
        self.unloaded: list[str] = []
        self.book = PoolBook(BUDGET, wait_s=wait_s, retry_s=retry_s)
        self.pool = EnginePool(
            self.book,
            self.works.make,
            on_event=lambda name, event: self.events.append((name, event)),
            on_unloaded=self.unloaded.append,
            now=now,
        )
        for name in ("a", "b"):
            self.pool.add(name, config_of(name), NEEDS, pinned=False, keep_alive_s=keep_alive_s)
        self.a, self.b = (PooledEngine(self.pool, name, config_of(name)) for name in ("a", "b"))

    def state(self, key: str) -> str:
        entry = self.book.get(key)
        return "gone" if entry is None else entry.state

    @property
    def loaded(self) -> list[str]:
        return [engine.config.model.name for engine in self.works.running]


@pytest_asyncio.fixture
async def one() -> AsyncIterator[Pool]:
    made = Pool()
    yield made
    await made.pool.close()
    assert made.works.running == []


def ask(id: str = "r", **fields: object) -> GenerateRequest:
    return GenerateRequest(id=id, prompt=(1, 2), sampling=SamplingParams(max_tokens=3), **fields)  # type: ignore[arg-type]


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def whole(engine: PooledEngine, id: str = "r") -> int:
    """Tokens of a whole answer."""
    return sum([len(chunk.tokens) async for chunk in await engine.submit(ask(id))])


async def test_the_first_request_loads_the_model_once_for_all_who_ask(one: Pool) -> None:
    one.works.gate.clear()
    asked = [asyncio.create_task(whole(one.a, str(number))) for number in range(5)]
    await turns()
    assert one.a.state == "starting"
    assert [engine.config.memory_budget_bytes for engine in one.works.made] == [60]
    one.works.gate.set()
    assert await asyncio.gather(*asked) == [3] * 5
    assert len(one.works.made) == 1
    assert one.pool.loads == 1


async def test_a_fault_of_ours_while_a_model_is_loaded_is_told_to_whoever_waits(
    one: Pool, caplog: pytest.LogCaptureFixture
) -> None:
    one.works.refuse = ValueError("a fault")  # type: ignore[assignment]
    for answer in await asyncio.gather(whole(one.a, "1"), whole(one.a, "2"), return_exceptions=True):
        assert isinstance(answer, EngineFault)
        assert "ValueError" in answer.message
    assert one.state("a") == "cold"
    assert [bool(record.exc_info) for record in caplog.records if record.message == "model_load_broke"] == [True]


async def test_a_limit_reaches_engines_that_are_loaded_later_too(one: Pool) -> None:
    assert await whole(one.a) == 3
    first = one.works.made[0]
    assert first.limits is None
    one.pool.limit(0.25, 0.5)
    assert first.limits == (0.25, 0.5)
    assert await whole(one.b) == 3
    assert one.works.made[1].limits == (0.25, 0.5)


async def test_a_model_is_kept_while_its_encoder_is_measured() -> None:
    clock = SimpleNamespace(seconds=0.0)
    made = Pool(keep_alive_s=300.0, now=lambda: clock.seconds)
    assert await whole(made.a) == 3
    engine = made.works.made[0]
    engine.notify(BEGUN)
    entry = made.book.get("a")
    assert entry is not None
    assert entry.expires == 300.0
    clock.seconds = 301.0
    made.pool.start_pinned()  # there are none: the pool looks at its clock
    await until(lambda: entry.expires != 300.0)
    assert (entry.expires or 0.0) > 301.0, "looked at, and kept"
    assert made.loaded == ["a"]
    engine.crash()  # whatever it measured has ended with it
    assert not entry.improving
    engine.notify(BEGUN)
    engine.notify(ENDED)
    assert not entry.improving
    await made.pool.close()


async def test_another_model_takes_its_place_when_the_answer_has_ended(one: Pool) -> None:
    stream = await one.a.submit(ask())
    asking = asyncio.create_task(whole(one.b))
    await turns()
    assert one.loaded == ["a"]
    assert one.state("b") == "waiting"
    assert sum([len(chunk.tokens) async for chunk in stream]) == 3
    assert await asking == 3
    assert one.loaded == ["b"]
    assert one.unloaded == ["a"]
    assert (one.a.state, one.a.info) == ("stopped", None)
    assert one.pool.evictions == 1


@pytest.mark.parametrize("end", ["closed", "cancelled", "dropped"])
async def test_a_stream_that_is_given_up_no_longer_holds_the_model(one: Pool, end: str) -> None:
    stream = await one.a.submit(ask())
    if end == "closed":
        await stream.aclose()
        await stream.aclose()
    elif end == "cancelled":
        one.works.made[0].inner.hold.clear()
        reading = asyncio.create_task(stream.__anext__())
        await turns()
        reading.cancel()
        await asyncio.wait({reading})
    else:
        del stream
        gc.collect()
        await turns()
    entry = one.book.get("a")
    assert entry is not None
    assert entry.streams == 0
    assert await whole(one.b) == 3


async def test_a_request_that_the_engine_refuses_holds_nothing(one: Pool) -> None:
    await one.a.load()
    one.works.made[0].inner.refuse = QueueFull("full")
    with pytest.raises(QueueFull):
        await one.a.submit(ask())
    assert await whole(one.b) == 3


async def test_the_only_one_who_waits_leaves_and_the_model_is_whole_or_gone(one: Pool) -> None:
    one.works.gate.clear()
    asking = asyncio.create_task(whole(one.a))
    await turns()
    asking.cancel()
    await asyncio.wait({asking})
    assert one.state("a") == "loading"
    one.works.gate.set()
    await turns()
    assert one.state("a") == "ready"
    entry = one.book.get("a")
    assert entry is not None
    assert not entry.busy


async def test_who_leaves_in_the_turn_in_which_it_is_granted_holds_nothing(one: Pool) -> None:
    one.works.gate.clear()
    asking = asyncio.create_task(one.pool.acquire("a", config_of("a")))
    await turns()
    entry = one.book.get("a")
    assert entry is not None
    one.works.gate.set()
    while not entry.streams:  # noqa: ASYNC110 - the very turn is meant
        await asyncio.sleep(0)
    asking.cancel()
    await asyncio.wait({asking})
    assert asking.cancelled()
    assert not entry.busy
    assert await whole(one.b) == 3


async def test_a_load_that_nobody_waits_for_is_ended_for_another_model(one: Pool) -> None:
    one.works.gate.clear()
    asking = asyncio.create_task(whole(one.a))
    await turns()
    asking.cancel()
    await asyncio.wait({asking})
    other = asyncio.create_task(whole(one.b))
    await turns()
    assert one.loaded == ["b"]
    one.works.gate.set()
    assert await other == 3


async def test_a_failed_load_is_told_to_all_and_tried_again_after_a_pause() -> None:
    one = Pool(retry_s=1.0)
    one.works.refuse = BadModelFile("damaged")
    asked = [asyncio.create_task(whole(one.a, str(number))) for number in range(3)]
    results = await asyncio.gather(*asked, return_exceptions=True)
    assert [type(result) for result in results] == [BadModelFile] * 3
    assert len({id(result) for result in results}) == 3
    with pytest.raises(BadModelFile):
        await whole(one.a)
    assert len(one.works.made) == 1
    one.works.refuse = None
    await asyncio.sleep(1.05)
    assert await whole(one.a) == 3
    await one.pool.close()


async def test_an_engine_that_dies_while_loading_is_not_waited_for(one: Pool) -> None:
    one.works.gate.clear()
    asking = asyncio.create_task(whole(one.a))
    await turns()
    one.works.made[0].crash("It was killed.")
    with pytest.raises(EngineUnavailable, match="It was killed"):
        await asking
    assert one.loaded == []
    assert one.book.granted == 0


async def test_a_crash_of_a_ready_engine_is_its_supervisors_business_but_not_one_for_good(one: Pool) -> None:
    await one.a.load()
    engine: FakeManagedEngine = one.works.made[0]
    engine.crash()
    await turns()
    assert one.loaded == ["a"]
    engine.crash("It keeps failing.", for_good=True)
    await turns()
    assert one.loaded == []
    with pytest.raises(EngineUnavailable, match="keeps failing"):
        await whole(one.a)


async def test_no_room_in_time_is_503_with_a_time_to_try_again() -> None:
    one = Pool(wait_s=0.05)
    stream = await one.a.submit(ask())
    with pytest.raises(EngineUnavailable, match="'a' is answering") as refused:
        await whole(one.b)
    assert refused.value.retry_after_s
    assert sum([len(chunk.tokens) async for chunk in stream]) == 3
    assert await whole(one.b) == 3
    await one.pool.close()


async def test_what_can_never_fit_is_refused_at_once(one: Pool) -> None:
    one.pool.add("big", config_of("big"), Needs(minimal=101, full=101, context=9), pinned=False, keep_alive_s=1.0)
    with pytest.raises(OutOfMemory, match="'big' needs"):
        await PooledEngine(one.pool, "big", config_of("big")).submit(ask())


async def test_the_requests_own_deadline_counts_while_it_waits(one: Pool) -> None:
    one.works.gate.clear()
    with pytest.raises(DeadlineExceeded, match="before the model was loaded"):
        await one.a.submit(ask(deadline_s=0.02))
    one.works.gate.set()
    await one.a.submit(ask(deadline_s=60.0))
    left = one.works.made[0].inner.requests[0].deadline_s
    assert left is not None
    assert left < 60.0


async def test_keep_alive_unloads_by_the_clock() -> None:
    one = Pool(keep_alive_s=0.03)
    assert await whole(one.a) == 3
    await until(lambda: not one.loaded)
    assert one.unloaded == ["a"]
    await one.pool.close()


async def test_a_retired_model_is_refused_and_forgotten(one: Pool) -> None:
    stream = await one.a.submit(ask())
    one.pool.retire("a")
    with pytest.raises(ModelNotFound):
        await one.a.submit(ask("2"))
    assert sum([len(chunk.tokens) async for chunk in stream]) == 3
    await turns()
    assert one.loaded == []
    with pytest.raises(ModelNotFound):
        await one.a.submit(ask("3"))


async def test_closing_ends_who_waits_what_loads_and_what_is_ready() -> None:
    one = Pool()
    one.works.gate.clear()
    loading = asyncio.create_task(whole(one.a))
    await turns()
    waiting = asyncio.create_task(whole(one.b))
    await turns()
    await one.pool.close()
    for task in (loading, waiting):
        with pytest.raises(ShuttingDown):
            await task
    assert one.works.running == []
    with pytest.raises(ShuttingDown):
        await one.a.submit(ask())


async def test_a_pinned_engine_is_handed_out_before_it_is_ready_and_is_resized_for_others() -> None:
    works = FakeWorks(budget=130)
    book = PoolBook(130, wait_s=30.0, retry_s=30.0)
    pool = EnginePool(book, works.make, on_event=lambda name, event: None)
    book.sharing = False
    pool.add("home", config_of("home"), NEEDS, pinned=True, keep_alive_s=0.0)
    pool.start_pinned()
    ready = asyncio.create_task(pool.wait_ready("home"))
    assert await ready
    assert [engine.config.memory_budget_bytes for engine in works.running] == [130]
    book.sharing = True
    pool.add("guest", config_of("guest"), NEEDS, pinned=False, keep_alive_s=300.0)
    assert await whole(PooledEngine(pool, "guest", config_of("guest"))) == 3
    await turns()
    assert sorted(engine.config.model.name for engine in works.running) == ["guest", "home"]
    assert await whole(PooledEngine(pool, "home", config_of("home"))) == 3
    await pool.close()
    assert works.running == []
