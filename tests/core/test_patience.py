"""A limit on waiting: it ends the work, and is told apart from a cancellation from outside."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Callable

import pytest

from edgewise.core.patience import Alarm, wait_set, within


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


async def test_an_event_is_waited_for_as_long_as_allowed() -> None:
    event = asyncio.Event()
    assert not await wait_set(event, 0.01)
    asyncio.get_running_loop().call_soon(event.set)
    assert await wait_set(event, 60.0)
    assert await wait_set(event, 0.0)


async def test_a_cancellation_in_the_moment_of_waking_is_not_lost() -> None:
    """`asyncio.wait_for` loses it before Python 3.12: a task that loops so cannot be ended."""
    event = asyncio.Event()
    task = asyncio.create_task(wait_set(event, 60.0))
    for _ in range(2):
        await asyncio.sleep(0)
    event.set()
    await asyncio.sleep(0)  # what it waits for is done, and it has not gone on yet
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


class KnownLoop:
    """A loop double whose time is set by hand; it keeps the one timer that an alarm may have."""

    def __init__(self) -> None:
        self.now = 0.0
        self.timer: tuple[float, Callable[[], object]] | None = None

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, look: Callable[[], object]) -> KnownLoop:
        assert self.timer is None
        self.timer = when, look
        return self

    def cancel(self) -> None:
        self.timer = None

    def go(self, now: float) -> None:
        """Let time pass; a timer that is due is called."""
        self.now = now
        if self.timer is not None and self.timer[0] <= now:
            (_, look), self.timer = self.timer, None
            look()


async def test_an_alarm_rings_for_the_wait_that_is_too_long_and_has_one_timer_for_many_short_ones() -> None:
    rung: list[float] = []
    loop = KnownLoop()
    alarm = Alarm(5.0, lambda: rung.append(loop.now))
    alarm._loop = loop  # type: ignore[assignment]
    for second in range(20):  # waits of a second each
        alarm.begin()
        loop.go(float(second + 1))
        alarm.end()
    assert not rung
    alarm.begin()
    for second in range(20, 30):
        loop.go(float(second))
    assert rung == [25.0]
    alarm.begin()
    alarm.close()
    assert loop.timer is None


async def _late_and_cancelled_at_once() -> bool:
    """Whether a task that is cancelled in the moment in which its limit passes is cancelled."""
    work = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(within(work, 0.0, TooLate))
    await asyncio.sleep(0)  # it waits, and its timer is due
    asyncio.get_running_loop().call_soon(task.cancel)
    await asyncio.wait({task})
    return task.cancelled()


@pytest.mark.skipif(sys.version_info < (3, 11), reason="tasks count cancellations from Python 3.11 on")
async def test_a_cancellation_in_the_moment_of_the_limit_is_not_lost() -> None:
    assert await _late_and_cancelled_at_once()


async def test_a_task_whose_work_was_late_does_not_count_as_one_that_is_to_end() -> None:
    async def deaf() -> str:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(60)
        return "all the same"

    task = asyncio.current_task()
    assert task is not None
    with pytest.raises(TooLate):
        await within(asyncio.sleep(60), 0.0, TooLate)
    assert await within(deaf(), 0.0, TooLate) == "all the same"
    if sys.version_info >= (3, 11):
        assert task.cancelling() == 0
