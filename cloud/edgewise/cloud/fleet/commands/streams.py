"""Acknowledgements of a command as they come, for whoever reads its answer while it is made."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from edgewise.core.errors import LinkLost
from edgewise.wire.fleet import Ack

CREDIT = 64
"""Pieces that a device may send ahead of their reader."""
_WAITING = 4 * CREDIT


class Listener:
    """One reader of one command. Each piece once, in order: a broker may deliver one twice."""

    def __init__(self) -> None:
        self._waiting: deque[Ack] = deque()
        self._some = asyncio.Event()
        self._next = 0
        self._over = False

    def add(self, ack: Ack) -> None:
        if ack.text is not None and ack.offset is not None:
            if ack.offset < self._next:
                return
            self._next = ack.offset + 1
        if len(self._waiting) >= _WAITING:
            self._over = True
        else:
            self._waiting.append(ack)
        self._some.set()

    async def next(self) -> Ack:
        """Waits for it.

        Raises:
            LinkLost: More came than this reader took; the command itself goes on.
        """
        while not self._waiting:
            if self._over:
                raise LinkLost(
                    "The reader of the stream was too slow; the command's result has all of it when it ends."
                )
            self._some.clear()
            await self._some.wait()
        return self._waiting.popleft()


class Streams:
    """Used in the event loop only."""

    def __init__(self) -> None:
        self._listeners: dict[str, set[Listener]] = {}

    def publish(self, command_id: str, ack: Ack) -> None:
        for listener in self._listeners.get(command_id, ()):
            listener.add(ack)

    @contextmanager
    def listen(self, command_id: str) -> Iterator[Listener]:
        """What comes of a command while the block runs."""
        listener = Listener()
        self._listeners.setdefault(command_id, set()).add(listener)
        try:
            yield listener
        finally:
            rest = self._listeners[command_id]
            rest.discard(listener)
            if not rest:
                del self._listeners[command_id]
