"""A limit on waiting: it ends the work, and is told apart from a cancellation from outside."""

from __future__ import annotations

import asyncio

import pytest

from edgewise.core.patience import within


class TooLate(Exception):
    """What the caller wants to hear."""


async def test_work_in_time_gives_its_result() -> None:
    assert await within(asyncio.sleep(0, "done"), 60.0, TooLate) == "done"


async def test_late_work_is_ended_and_named() -> None:
    ended = asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    with pytest.raises(TooLate):
        await within(work(), 0.01, TooLate)
    assert ended.is_set()


async def test_a_cancellation_from_outside_stays_one() -> None:
    task = asyncio.create_task(within(asyncio.sleep(60), 60.0, TooLate))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_an_error_of_the_work_passes_through() -> None:
    async def work() -> None:
        raise TimeoutError("its own")

    with pytest.raises(TimeoutError, match="its own"):
        await within(work(), 60.0, TooLate)
