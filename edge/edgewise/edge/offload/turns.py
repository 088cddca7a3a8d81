"""One at a time for each name, and no trace of names that nobody uses."""

from __future__ import annotations

import asyncio
from weakref import WeakValueDictionary


class Turns:
    """`async with turns.of(name):` waits for whoever is in there under the same name."""

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def of(self, name: str) -> asyncio.Lock:
        lock = self._locks.get(name)
        if lock is None:
            lock = self._locks[name] = asyncio.Lock()
        return lock
