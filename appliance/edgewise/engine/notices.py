"""What the inside of an engine wants operators to know, from whichever thread finds out. Torch-free."""

from __future__ import annotations

import threading
from collections.abc import Callable

Notify = Callable[[str, str], None]
"""Told a stable word and a sentence."""


class Notices:
    """Passes notices to a listener; keeps the last few until there is one."""

    _KEPT = 16

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._listener: Notify | None = None
        self._waiting: list[tuple[str, str]] = []

    def put(self, kind: str, message: str) -> None:
        with self._lock:
            listener = self._listener
            if listener is None:
                self._waiting = [*self._waiting, (kind, message)][-self._KEPT :]
                return
        listener(kind, message)

    def listen(self, listener: Notify) -> None:
        with self._lock:
            self._listener = listener
            waiting, self._waiting = self._waiting, []
        for kind, message in waiting:
            listener(kind, message)
