"""Waits for something to do, at most so long."""

from __future__ import annotations

import asyncio


class Waker:
    """One task waits, anybody wakes it; a wake that comes while it works is not lost."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def wake(self) -> None:
        self._event.set()

    async def wait(self, seconds: float) -> None:
        """Return when woken, also if that was since the last return, or after so many seconds."""
        timer = asyncio.get_running_loop().call_later(seconds, self._event.set)
        try:
            await self._event.wait()
        finally:
            timer.cancel()
        self._event.clear()
