"""Events of the service (engine restarted, drain begun, ...): the last ones in a ring, and a live feed."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from edgewise.core.clock import Clock


@dataclass(frozen=True, slots=True)
class Event:
    """Attributes:
    id: Counts from 1 since the service started.
    time: Seconds since the epoch.
    kind: A stable word, e.g. "engine_restarted".
    fields: Facts as plain JSON data; no prompt text.
    """

    id: int
    time: float
    kind: str
    message: str
    fields: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


class EventLog:
    """Use from the event loop only."""

    def __init__(self, *, clock: Clock, keep: int = 1000) -> None:
        self._clock = clock
        self._events: deque[Event] = deque(maxlen=keep)
        self._next = 1
        self._wake = asyncio.Event()

    def emit(self, kind: str, message: str, **fields: Any) -> Event:
        event = Event(self._next, round(self._clock.time(), 3), kind, message, fields)
        self._next += 1
        self._events.append(event)
        self._wake.set()
        self._wake = asyncio.Event()
        return event

    def since(self, id: int = 0) -> list[Event]:
        """Events after number `id`, oldest first, as far as the ring holds them."""
        return [event for event in self._events if event.id > id]

    async def follow(self, after: int = 0) -> AsyncIterator[Event]:
        """Events after number `after`, then each new one; never ends by itself."""
        while True:
            wake = self._wake
            for event in self.since(after):
                after = event.id
                yield event
            await wake.wait()
