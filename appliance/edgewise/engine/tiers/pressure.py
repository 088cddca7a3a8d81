"""Shrinks a cache when memory becomes scarce, also while the engine is idle. Torch-free."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

LOOK_S = 1.0


class Shrinks(Protocol):
    """A cache that can do with less."""

    def shrink(self, excess: int) -> None:
        """Give `excess` bytes of what is held back; negative says that there is room to grow. Called from another thread."""


class PressureWatch:
    """Looks at the system's memory once in a while, from `start` to `stop`.

    Args:
        cache: Is shrunk, and may grow again.
        excess: Bytes that should be given back now; negative is room to grow.
        look_s: Seconds between two looks.
    """

    def __init__(self, cache: Shrinks, excess: Callable[[], int], *, look_s: float = LOOK_S) -> None:
        self._cache = cache
        self._excess = excess
        self._look_s = look_s
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="cache-pressure", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.wait(self._look_s):
            self._cache.shrink(self._excess())
