"""Work that a service does again and again in the background, whatever befalls one turn of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from edgewise.core.errors import EdgewiseError, reason_of
from edgewise.core.log import get_logger

log = get_logger(__name__)

Sleep = Callable[[float], Awaitable[None]]

_LONGEST_REST_S = 30.0
_FIRST_QUIET_S, _LONGEST_QUIET_S = 60.0, 3600.0
_MOST = 1000


@dataclass(frozen=True, slots=True)
class _Told:
    text: str
    quiet_s: float
    until: float


class Guard:
    """Logs what goes wrong in work that is done again and again: at once where it is something else than the last time, else
    after a minute and then ever more seldom, up to once an hour.

    Args:
        now: Monotonic seconds.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._told: dict[tuple[str, str], _Told] = {}

    def __repr__(self) -> str:
        return f"Guard({len(self._told)} stuck)"

    async def run(self, turn: Callable[[], Awaitable[object]], *, stuck: str, **facts: object) -> bool:
        """One turn; what it raises is logged with `facts`. Whether it raised nothing."""
        try:
            await turn()
        except Exception as error:  # noqa: BLE001 - logged; a fault concerns this turn, never those that come later
            self.failed(stuck, error, **facts)
            return False
        self.well(stuck, **facts)
        return True

    def failed(self, stuck: str, error: Exception, **facts: object) -> None:
        """Log what is being handled: an error of the tree by its message, a fault of this program with its traceback."""
        known = isinstance(error, EdgewiseError)
        text = reason_of(error)
        key, now = (stuck, repr(facts)), self._now()
        before = self._told.get(key)
        again = before is not None and before.text == text
        if before is not None and again and now < before.until:
            return
        quiet_s = min(2 * before.quiet_s, _LONGEST_QUIET_S) if before is not None and again else _FIRST_QUIET_S
        self._told.pop(key, None)
        self._told[key] = _Told(text, quiet_s, now + quiet_s)
        if len(self._told) > _MOST:  # of what is not done any more nobody says so
            del self._told[next(iter(self._told))]
        if known:
            log.error(stuck, reason=text, **facts)
        else:
            log.exception(stuck, **facts)

    def well(self, stuck: str, **facts: object) -> None:
        """It went well: what goes wrong next is news."""
        self._told.pop((stuck, repr(facts)), None)


async def recur(
    turn: Callable[[], Awaitable[object]], *, every_s: float, stuck: str, sleep: Sleep = asyncio.sleep
) -> None:
    """Do `turn`, then rest for `every_s` seconds; for ever, as the outermost frame of a task.

    Neither an error of the tree (a database or a disk that refuses: the next turn may succeed) nor a fault of this program ends
    it, since nobody would hear of a task that has ended. Rests double while turns fail, up to half a minute.

    Args:
        stuck: The event that either is logged as, see `Guard`.
    """
    guard = Guard()
    rest_s = every_s
    while True:
        if await guard.run(turn, stuck=stuck):
            rest_s = every_s
            await sleep(every_s)
        else:
            await sleep(rest_s)
            rest_s = min(2 * rest_s, max(every_s, _LONGEST_REST_S))
