"""How long and how often a lost link is tried again."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncGenerator
from types import AsyncGeneratorType
from typing import Any, cast

from edgewise.core.errors import DeadlineExceeded, EdgewiseError
from edgewise.wire.http import SILENCE_S

_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 1.0
_MOMENT_S = 0.001
_ALIVE_S = SILENCE_S + 5.0
"""A connection that lasted longer than it takes to notice that there is none was a living one."""


def being_read(generator: AsyncGenerator[Any, None]) -> bool:
    """Whether somebody waits for its next item now: then it cannot be closed, and ends with its reader."""
    return cast(AsyncGeneratorType[Any, None], generator).ag_running


class Deadline:
    """Seconds from now after which nobody needs an answer; None for no limit. Whoever goes on with a request has what is left."""

    def __init__(self, seconds: float | None) -> None:
        self._at = None if seconds is None else time.monotonic() + seconds

    def left(self) -> float | None:
        """A moment at least: that it is over is said by whoever is asked then."""
        return None if self._at is None else max(_MOMENT_S, self._at - time.monotonic())


class Waiting:
    """Pauses that grow from one loss to the next, until patience or the request's deadline is over.

    Args:
        patience_s: Seconds without a sign of life after which a loss is for good.
        deadline: On the monotonic clock; None for none.
    """

    def __init__(self, patience_s: float, deadline: float | None = None) -> None:
        self._patience = patience_s
        self._deadline = deadline
        self._lost: float | None = None
        self._pause = _FIRST_PAUSE_S
        self._since = time.monotonic()

    def progress(self) -> bool:
        """Something arrived; whether that ends a loss."""
        lost, self._lost = self._lost, None
        self._pause = _FIRST_PAUSE_S
        return lost is not None

    async def pause(self, error: EdgewiseError) -> None:
        """Wait before the next try.

        Raises:
            EdgewiseError: `error`: patience is over.
            DeadlineExceeded: Nobody needs the answer any more.
        """
        now = time.monotonic()
        if now - self._since > _ALIVE_S:
            self.progress()
        if self._lost is None:
            self._lost = now
        if self._deadline is not None and now >= self._deadline:
            raise DeadlineExceeded("The link to the cloud did not come back before the request's deadline.") from error
        left = self._lost + self._patience - now
        if left <= 0:
            raise error
        await asyncio.sleep(min(left, self._pause * random.uniform(0.5, 1.0)))  # noqa: S311 - spreads retries, keeps no secret
        self._pause = min(2 * self._pause, _LONGEST_PAUSE_S)
        self._since = time.monotonic()
