"""Waiting with a limit, and for the end of tasks."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

Result = TypeVar("Result")


async def within(work: Awaitable[Result], seconds: float, late: Callable[[], Exception]) -> Result:
    """Await `work` in the caller's own task, which costs no task for each call; after `seconds` raise what `late` makes.

    Not by `asyncio.wait_for`: before Python 3.12 it can lose a cancellation. One that comes in the moment of the limit is kept
    too, from Python 3.11 on, where tasks count how often they were asked to end.
    """
    waiter = asyncio.current_task()
    assert waiter is not None
    before = _asked_to_end(waiter)
    given_up = False

    def give_up() -> None:
        nonlocal given_up
        given_up = True
        waiter.cancel()

    timer = asyncio.get_running_loop().call_later(seconds, give_up)
    try:
        return await work
    except asyncio.CancelledError:
        if given_up and _asked_to_end(waiter) <= before + 1:
            raise late() from None
        raise
    finally:
        timer.cancel()
        if given_up and sys.version_info >= (3, 11):
            waiter.uncancel()  # or whoever counts would take the task for one that is to end


def _asked_to_end(task: asyncio.Task[Any]) -> int:
    if sys.version_info >= (3, 11):
        return task.cancelling()
    return 0


async def wait_set(event: asyncio.Event, seconds: float) -> bool:
    """Wait until an event is set, at most so long; whether it was.

    Not by `asyncio.wait_for`, as above: a loop that waits so, and is cancelled in the moment in which it is woken, would go on.
    """
    waiting = asyncio.ensure_future(event.wait())
    try:
        done, _ = await asyncio.wait({waiting}, timeout=seconds)
    finally:
        waiting.cancel()
    return bool(done)


class Alarm:
    """Calls `ring` when one of many waits, of which one is under way at a time, has lasted too long.

    Waits that end soon cost no timer each: there is one, which looks when the oldest wait that it knows of would be too long, and
    is set anew for the wait that is under way then.
    """

    def __init__(self, seconds: float, ring: Callable[[], object]) -> None:
        self.seconds = seconds
        self._ring = ring
        self._loop = asyncio.get_running_loop()
        self._due: float | None = None
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """A wait begins."""
        self._due = self._loop.time() + self.seconds
        if self._timer is None:
            self._timer = self._loop.call_at(self._due, self._look)

    def end(self) -> None:
        """The wait has ended."""
        self._due = None

    def close(self) -> None:
        """There will be no more waits."""
        self._due = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self._timer = None
        if self._due is None:
            return
        if self._loop.time() < self._due:
            self._timer = self._loop.call_at(self._due, self._look)
            return
        self._due = None
        self._ring()


async def end_task(*tasks: asyncio.Task[Any] | None) -> None:
    """Cancel tasks, all of them before any is waited for, and wait until they have ended, however they do; None is none."""
    running = [task for task in tasks if task is not None]
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
