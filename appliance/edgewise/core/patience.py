"""Waiting with a limit."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

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
