"""Waiting with a limit, and for the end of a task."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

Result = TypeVar("Result")


async def within(work: Awaitable[Result], seconds: float, late: Callable[[], Exception]) -> Result:
    """Await `work` in the caller's own task, which costs no task for each call; after `seconds` raise what `late` makes.

    Not by `asyncio.wait_for`: before Python 3.12 it can lose a cancellation.
    """
    waiter = asyncio.current_task()
    assert waiter is not None
    given_up = False

    def give_up() -> None:
        nonlocal given_up
        given_up = True
        waiter.cancel()

    timer = asyncio.get_running_loop().call_later(seconds, give_up)
    try:
        return await work
    except asyncio.CancelledError:
        if given_up:
            raise late() from None
        raise
    finally:
        timer.cancel()


async def end_task(task: asyncio.Task[Any] | None) -> None:
    """Cancel a task and wait until it has ended, however it does; without one there is nothing to do."""
    if task is not None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
