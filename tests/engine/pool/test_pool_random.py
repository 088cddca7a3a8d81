"""The pool in any order: requests come, leave and time out while engines load, fail, die and are ordered away."""

from __future__ import annotations

import asyncio
import random
from contextlib import aclosing, suppress

import pytest

from edgewise.core.errors import BadModelFile, EdgewiseError
from edgewise.engine.fit import Needs
from edgewise.engine.pool.book import PoolBook
from edgewise.engine.pool.pool import EnginePool
from edgewise.engine.pool.pooled import PooledEngine
from tests.engine.pool.test_pool import ask, turns
from tests.fakes.pool import FakeWorks, config_of

BUDGET = 100
SIZES = {"a": 60, "b": 50, "c": 30, "d": 90}


class Storm:
    """Models of which few fit, and whatever chance does to them."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.works = FakeWorks(budget=BUDGET)
        self.book = PoolBook(BUDGET, wait_s=0.01, retry_s=0.002)
        self.pool = EnginePool(self.book, self.works.make, on_event=lambda name, event: None)
        for name, size in SIZES.items():
            needs = Needs(minimal=size, full=size, context=512)
            self.pool.add(name, config_of(name), needs, pinned=False, keep_alive_s=0.004)
        self.engines = {name: PooledEngine(self.pool, name, config_of(name)) for name in SIZES}
        self.tasks: list[asyncio.Task[None]] = []
        self.answered = 0

    async def request(self, number: int) -> None:
        """One caller: reads its answer, or leaves after some of it."""
        leaves = self.chance.randrange(3) if self.chance.random() < 0.3 else None
        fields = {"deadline_s": 0.003} if self.chance.random() < 0.2 else {}
        name = self.chance.choice(list(SIZES))
        with suppress(EdgewiseError):
            async with aclosing(await self.engines[name].submit(ask(f"r{number}", **fields))) as stream:
                for taken in range(100):
                    if taken == leaves:
                        return
                    if (await stream.__anext__()).finish is not None:
                        self.answered += 1
                        return
                    await asyncio.sleep(self.chance.choice([0.0, 0.001]))

    def turn(self, number: int) -> None:
        chance = self.chance
        match chance.randrange(10):
            case 0 | 1 | 2 | 3:
                self.tasks.append(asyncio.create_task(self.request(number)))
            case 4:
                chance.choice(self.tasks or [asyncio.create_task(asyncio.sleep(0))]).cancel()
            case 5:
                self.works.gate.set() if chance.random() < 0.7 else self.works.gate.clear()
            case 6:
                self.works.refuse = BadModelFile("ordered") if chance.random() < 0.2 else None
            case 7:
                if self.works.running and chance.random() < 0.4:
                    chance.choice(self.works.running).crash(for_good=chance.random() < 0.5)
            case 8:
                self.pool.unload(chance.choice(list(SIZES)))


@pytest.mark.parametrize("seed", range(6))
async def test_every_request_ends_and_nothing_is_held(seed: int) -> None:
    storm = Storm(seed)
    for number in range(400):
        storm.turn(number)
        await (turns(storm.chance.randrange(4)) if storm.chance.random() < 0.9 else asyncio.sleep(0.002))
    storm.works.gate.set()
    storm.works.refuse = None
    ends = await asyncio.gather(*storm.tasks, return_exceptions=True)
    assert [end for end in ends if end is not None and not isinstance(end, asyncio.CancelledError)] == []
    assert storm.answered > 10
    entries = list(storm.book.entries())
    assert [(entry.waiters, entry.streams) for entry in entries] == [(0, 0)] * len(SIZES)
    while storm.book.granted:  # kept for a while, then unloaded  # noqa: ASYNC110 - nothing tells of it
        await asyncio.sleep(0.001)
    assert storm.works.running == []
    await storm.pool.close()
    assert not storm.pool._tasks
