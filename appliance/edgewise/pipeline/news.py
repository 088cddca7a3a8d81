"""What has come for one reader, who may wait for the next of it."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Generic, TypeVar

from edgewise.core.errors import EdgewiseError
from edgewise.core.patience import Alarm

ItemT = TypeVar("ItemT")


class News(Generic[ItemT]):
    """Items in their order; an error among them is raised when its turn comes."""

    def __init__(self) -> None:
        self._items: deque[ItemT | EdgewiseError] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._alarm: Alarm | None = None

    def __len__(self) -> int:
        return len(self._items)

    def put(self, item: ItemT | EdgewiseError) -> None:
        self._items.append(item)
        self.rouse()

    def rouse(self) -> None:
        """End the reader's wait, though nothing has come."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def close(self) -> None:
        """Nobody waits any more."""
        if self._alarm is not None:
            self._alarm.close()
            self._alarm = None

    async def next(self, timeout_s: float | None = None) -> ItemT | None:
        """The oldest item; None where none came within `timeout_s`, or before the reader was roused."""
        if not self._items:
            await self._arrival(timeout_s)
        if not self._items:
            return None
        item = self._items.popleft()
        if isinstance(item, EdgewiseError):
            raise item
        return item

    def at_hand(self) -> ItemT | None:
        """The oldest item where it has come already; None for nothing, and for an error, which `next` raises."""
        item = self._items[0] if self._items else None
        if item is None or isinstance(item, EdgewiseError):
            return None
        self._items.popleft()
        return item

    async def _arrival(self, timeout_s: float | None) -> None:
        """Not by `asyncio.wait_for`: before Python 3.12 it can lose a cancellation."""
        self._waiter = asyncio.get_running_loop().create_future()
        alarm = None if timeout_s is None else self._alarm_of(timeout_s)
        if alarm is not None:
            alarm.begin()
        try:
            await self._waiter
        finally:
            self._waiter = None
            if alarm is not None:
                alarm.end()

    def _alarm_of(self, seconds: float) -> Alarm:
        """The same as for the wait before, which had nearly always the same limit."""
        if self._alarm is None or self._alarm.seconds != seconds:
            self.close()
            self._alarm = Alarm(seconds, self.rouse)
        return self._alarm
