"""What arrives for the device: handed over by the link without waiting, then worked off in order by one task."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from edgewise.core.clock import Clock
from edgewise.core.errors import BadMessage, EdgewiseError
from edgewise.core.log import get_logger
from edgewise.core.patience import end_task
from edgewise.wire import topics
from edgewise.wire.mqtt.connection import Incoming
from edgewise.wire.mqtt.link import Link

log = get_logger(__name__)

MAX_WAITING = 1000
"""Messages; more than that are dropped, and whoever sent them sends them again."""


@dataclass(frozen=True, slots=True)
class Letter:
    """A message for the agent: `kind` "cmd", "ctl", "des" or "host"; `name` is the topic's last level."""

    kind: str
    name: str
    payload: bytes
    retained: bool
    arrived_s: float


Handler = Callable[[Letter], Awaitable[None]]


class Mail:
    """Args:
    handlers: By kind. An error of one concerns its message only.
    """

    def __init__(self, link: Link, clock: Clock, handlers: dict[str, Handler]) -> None:
        self._clock = clock
        self._handlers = handlers
        self._waiting: asyncio.Queue[Letter] = asyncio.Queue(MAX_WAITING)
        self._task: asyncio.Task[None] | None = None
        link.on(topics.down(link.uid), self._arrived)
        link.on(topics.HOST_LIVE, self._arrived)

    def start(self) -> None:
        self._task = asyncio.create_task(self._work(), name="agent-mail")

    async def stop(self) -> None:
        await end_task(self._task)

    @property
    def alive(self) -> bool:
        return self._task is not None and not self._task.done()

    def _arrived(self, incoming: Incoming) -> None:
        """In the link's callback: only enqueues."""
        kind, name = "host", "live"
        if incoming.topic != topics.HOST_LIVE:
            try:
                rest = topics.parse(incoming.topic).rest
            except BadMessage:
                return  # another part's, or nobody's
            if len(rest) != 2 or rest[0] not in ("cmd", "ctl", "des"):
                return
            kind, name = rest
        letter = Letter(kind, name, incoming.payload, incoming.retain, self._clock.monotonic())
        try:
            self._waiting.put_nowait(letter)
        except asyncio.QueueFull:
            log.warning("agent_busy", dropped=incoming.topic[:200])

    async def _work(self) -> None:
        while True:
            letter = await self._waiting.get()
            try:
                await self._handlers[letter.kind](letter)
            except EdgewiseError as error:
                log.warning("mqtt_message_dropped", kind=letter.kind, name=letter.name[:80], reason=error.message)
            except Exception:  # outermost frame of a task; the mail must not stand still
                log.exception("mail_broke", kind=letter.kind, name=letter.name[:80])
