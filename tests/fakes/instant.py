"""An event loop that waits for nothing: where it would sleep until a timer, its clock jumps there. For code without sockets and
threads; what takes minutes is over in a moment, and takes the same time on every machine."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


class InstantLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0
        waiting = self._selector.select  # type: ignore[attr-defined]

        def select(timeout: float | None) -> Any:
            assert timeout is not None, "nobody waits for anything that could happen"
            self._now += max(0.0, timeout)
            return waiting(0)

        self._selector.select = select  # type: ignore[attr-defined]

    def time(self) -> float:
        return self._now


def instantly(work: Coroutine[Any, Any, Result]) -> Result:
    """Run it on a clock that jumps."""
    loop = InstantLoop()
    try:
        return loop.run_until_complete(work)
    finally:
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()
