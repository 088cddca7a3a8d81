"""Work that a service does again and again in the background, whatever befalls one turn of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from edgewise.core.errors import EdgewiseError
from edgewise.core.log import get_logger

log = get_logger(__name__)

Sleep = Callable[[float], Awaitable[None]]


async def recur(
    turn: Callable[[], Awaitable[object]], *, every_s: float, stuck: str, sleep: Sleep = asyncio.sleep
) -> None:
    """Do `turn`, then rest for `every_s` seconds; for ever, as the outermost frame of a task.

    Neither an error of the tree (a database or a disk that refuses: the next turn may succeed) nor a fault of this program ends
    it, since nobody would hear of a task that has ended.

    Args:
        stuck: The event that either is logged as, a fault with its traceback.
    """
    while True:
        await guarded(turn, stuck=stuck)
        await sleep(every_s)


async def guarded(turn: Callable[[], Awaitable[object]], *, stuck: str, **facts: object) -> None:
    """One turn; what it raises is logged with `facts`."""
    try:
        await turn()
    except EdgewiseError as error:
        log.error(stuck, reason=error.message, **facts)
    except Exception:  # a fault concerns this turn, never those that come later
        log.exception(stuck, **facts)
