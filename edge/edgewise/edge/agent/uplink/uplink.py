"""Everything that goes up to the fleet and waits here until the fleet has it."""

from __future__ import annotations

from typing import Any

from edgewise.core.clock import Clock
from edgewise.core.errors import StorageError
from edgewise.core.log import get_logger
from edgewise.core.settings import Settings
from edgewise.core.sqlite import Database
from edgewise.edge.agent.moments import Moments
from edgewise.edge.agent.reserve import Reserve
from edgewise.edge.agent.uplink.budget import Budget
from edgewise.edge.agent.uplink.rows import Rows
from edgewise.edge.agent.uplink.sender import Sender
from edgewise.wire import topics
from edgewise.wire.fleet import Event, LogPart, Severity
from edgewise.wire.mqtt.link import Link

log = get_logger(__name__)


class Uplink:
    """Rows, what sends them, and the room that they have.

    Attributes:
        room: Whether the disk has room for what may be lost.
    """

    def __init__(self, settings: Settings, link: Link, database: Database, moments: Moments, clock: Clock) -> None:
        self._link = link
        self.rows = Rows(database, moments, max_bytes=settings.agent.outbox_bytes)
        self.budget = Budget(database, moments, settings.agent.daily_bytes)
        self.sender = Sender(link, self.rows, self.budget, moments, clock)
        self.reserve = Reserve(settings.home / "agent-reserve", self.rows)
        self.room = True

    @property
    def listening(self) -> bool:
        """Whether the fleet hears what is sent now, as far as is known."""
        return self._link.connected and not self.sender.host_away

    async def start(self) -> None:
        """Raises `StorageError`: call it again."""
        await self.budget.load()
        self.sender.start()

    async def look_after(self) -> None:
        """Call it now and then: after a full disk the reserve is taken again once there is space."""
        self.room = await self.reserve.hold()

    async def event(self, kind: str, severity: Severity, message: str, **facts: Any) -> None:
        """Something happened. A disk that refuses loses it, and the log says so."""
        event = Event(kind=kind, severity=severity, message=message[:2000], facts=facts)
        try:
            await self.rows.add("alert", topics.event(self._link.uid, severity), event)
        except StorageError as error:
            log.warning("event_not_kept", kind=kind, reason=error.message)
            return
        self.sender.wake()

    async def log_part(self, command: str, part: LogPart) -> None:
        """A part of the log that a command asked for. Raises `StorageError`."""
        await self.rows.add("log", topics.log_part(self._link.uid, command), part, re=command)
        self.sender.wake()
