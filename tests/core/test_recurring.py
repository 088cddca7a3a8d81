"""Work in the background goes on whatever befalls one turn of it."""

from __future__ import annotations

import asyncio

import pytest

from edgewise.core.errors import StorageError
from edgewise.core.recurring import Guard, recur


async def test_neither_an_error_nor_a_fault_ends_it(caplog: pytest.LogCaptureFixture) -> None:
    turns: list[BaseException | None] = [StorageError("the disk is full"), ValueError("a fault"), None]
    rests: list[float] = []
    done = asyncio.Event()

    async def turn() -> None:
        if not turns:
            done.set()
            await asyncio.Event().wait()
        error = turns.pop(0)
        if error is not None:
            raise error

    async def sleep(seconds: float) -> None:
        rests.append(seconds)

    task = asyncio.create_task(recur(turn, every_s=5.0, stuck="watch_stuck", sleep=sleep))
    await done.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert rests == [5.0, 10.0, 5.0]
    told = [(record.message, bool(record.exc_info)) for record in caplog.records]
    assert told == [("watch_stuck", False), ("watch_stuck", True)]


async def test_a_cancellation_ends_a_turn() -> None:
    async def turn() -> None:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await Guard().run(turn, stuck="watch_stuck")


async def test_what_stays_wrong_is_logged_ever_more_seldom(caplog: pytest.LogCaptureFixture) -> None:
    moment = 0.0
    guard = Guard(lambda: moment)

    async def turn() -> None:
        raise ValueError("a fault")

    for second in range(24 * 3600):
        moment = float(second)
        await guard.run(turn, stuck="watch_stuck", rule="r")
    logged = len(caplog.records)
    assert 20 < logged < 40
    assert all(record.exc_info for record in caplog.records)


async def test_something_else_is_news_and_so_is_what_comes_back(caplog: pytest.LogCaptureFixture) -> None:
    guard = Guard(lambda: 0.0)
    turns: list[Exception | None] = [ValueError("a"), ValueError("a"), ValueError("b"), StorageError("b"), None]

    async def turn() -> None:
        error = turns.pop(0)
        if error is not None:
            raise error

    went = [await guard.run(turn, stuck="watch_stuck") for _ in list(turns)]
    assert went == [False, False, False, False, True]
    assert len(caplog.records) == 3
    guard.failed("watch_stuck", StorageError("b"))
    guard.failed("watch_stuck", StorageError("b"), rule="another")
    assert len(caplog.records) == 5


def test_work_that_is_gone_leaves_a_bounded_rest() -> None:
    guard = Guard()
    for number in range(1500):
        guard.failed("watch_stuck", StorageError("away"), rule=number)
    assert repr(guard) == "Guard(1000 stuck)"


async def test_rests_double_to_half_a_minute_while_turns_fail() -> None:
    rests: list[float] = []

    async def turn() -> None:
        raise StorageError("the disk is full")

    async def sleep(seconds: float) -> None:
        rests.append(seconds)
        if len(rests) == 8:
            raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await recur(turn, every_s=1.0, stuck="watch_stuck", sleep=sleep)
    assert rests == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]
