"""Events on their way to one client, who may be slower than they come."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from typing import Final

from starlette.types import Send

from edgewise.api.realtime.events import Event
from edgewise.api.responses import dumps
from edgewise.core.errors import Cancelled
from edgewise.core.patience import within

_ROOM: Final = 1 << 20
"""Bytes that may wait; whoever tells more waits with them."""


class Outbox:
    """Args:
    send_timeout_s: A client that takes nothing for so long counts as gone.
    """

    def __init__(self, send: Send, *, send_timeout_s: float) -> None:
        self._send = send
        self._send_timeout_s = send_timeout_s
        self._waiting: deque[str] = deque()
        self._bytes = 0
        self._news = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._closed = False

    @property
    def waiting(self) -> int:
        """Bytes that have not left."""
        return self._bytes

    async def put(self, *events: Event) -> None:
        """Take events, then wait until there is room for more. What comes after `close` is dropped."""
        if self._closed:
            return
        self._take(events)
        if self._bytes > _ROOM:
            self._room.clear()
            await self._room.wait()

    async def run(self) -> None:
        """Send, until it is cancelled. Raises `Cancelled` when the client is given up."""
        while True:
            await self._news.wait()
            self._news.clear()
            await self.flush()

    async def flush(self) -> None:
        """Send all that waits. Not beside `run`."""
        while self._waiting:
            text = self._waiting[0]
            await within(self._send({"type": "websocket.send", "text": text}), self._send_timeout_s, self._given_up)
            self._waiting.popleft()
            self._bytes -= len(text)
            if self._bytes <= _ROOM:
                self._room.set()

    def close(self, *last: Event) -> None:
        """Take these events, whatever waits before them, and nothing more; nobody waits for room any more."""
        self._closed = True
        self._take(last)
        self._room.set()

    def _take(self, events: Iterable[Event]) -> None:
        for one in events:
            text = dumps(one).decode()
            self._waiting.append(text)
            self._bytes += len(text)
        self._news.set()

    def _given_up(self) -> Cancelled:
        return Cancelled(f"The client took nothing for {self._send_timeout_s:g} s.")
