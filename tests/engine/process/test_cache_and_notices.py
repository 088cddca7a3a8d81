"""Clearing the cache and notices cross the engine's socket."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from edgewise.core.errors import EngineUnavailable
from edgewise.engine.client import EngineClient
from edgewise.engine.events import EngineEvent
from edgewise.engine.notices import Notices
from edgewise.engine.timings import Timings

StartEngine = Callable[..., Awaitable[EngineClient]]


async def test_each_caller_gets_the_count_of_the_tier_it_named(start_engine: StartEngine) -> None:
    engine = await start_engine()
    answers = await asyncio.gather(engine.clear_cache(), engine.clear_cache("host"), engine.clear_cache("disk"))
    assert list(answers) == [{"device": 7, "host": 5}, {"host": 5}, {"disk": 5}]


async def test_an_engine_that_is_not_there_has_nothing_to_clear(start_engine: StartEngine) -> None:
    engine = await start_engine()
    await engine.stop()
    assert await engine.clear_cache() == {}


async def test_nobody_waits_for_ever_for_an_engine_that_does_not_answer(
    start_engine: StartEngine, quick: Timings
) -> None:
    engine = await start_engine(timings=replace(quick, patience_s=0.05))
    assert engine.pid is not None
    os.kill(engine.pid, signal.SIGSTOP)
    try:
        for _ in range(2):  # the second finds the question of the first still open
            with pytest.raises(EngineUnavailable, match="ask again"):
                await engine.clear_cache()
    finally:
        os.kill(engine.pid, signal.SIGCONT)


async def test_a_notice_becomes_an_event(start_engine: StartEngine) -> None:
    events: list[EngineEvent] = []
    await start_engine(settings={"notice": "The disk is full."}, events=events)
    while not any(event.kind == "notice" for event in events):  # noqa: ASYNC110 - the list is the client's, no event
        await asyncio.sleep(0.01)
    (notice,) = [event for event in events if event.kind == "notice"]
    assert (notice.code, notice.message) == ("fake_notice", "The disk is full.")


def test_notices_wait_for_a_listener() -> None:
    notices = Notices()
    for index in range(20):
        notices.put("kind", str(index))
    heard: list[Any] = []
    notices.listen(lambda kind, message: heard.append(message))
    notices.put("kind", "last")
    assert heard == [*map(str, range(4, 20)), "last"]


@pytest.mark.parametrize("tier", ["device", "host", "disk"])
async def test_one_tier_alone(start_engine: StartEngine, tier: str) -> None:
    engine = await start_engine()
    assert await engine.clear_cache(tier) == {tier: 5}  # type: ignore[arg-type]
