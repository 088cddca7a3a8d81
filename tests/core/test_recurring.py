"""Work in the background goes on whatever befalls one turn of it."""

from __future__ import annotations

import asyncio

import pytest

from edgewise.core.errors import StorageError
from edgewise.core.recurring import guarded, recur


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
    assert rests == [5.0, 5.0, 5.0]
    told = [(record.message, bool(record.exc_info)) for record in caplog.records]
    assert told == [("watch_stuck", False), ("watch_stuck", True)]


async def test_a_cancellation_ends_a_turn() -> None:
    async def turn() -> None:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await guarded(turn, stuck="watch_stuck")
