"""One cloud service behind a broker: a second one finds the first, and stands down.

The broker would share requests among several, but each has a job table of its own: a request that is sent again could become a
second job, and what a device says of its stream would be answered twice. So each service says on one topic that it is there and
for how long it has served; of two, the one that has served longer goes on. Durations are compared, no clocks.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable

from pydantic import NonNegativeFloat

from edgewise.core.errors import BadMessage, EdgewiseError
from edgewise.core.log import get_logger
from edgewise.core.patience import end_task
from edgewise.core.recurring import Guard
from edgewise.wire import topics
from edgewise.wire.envelope import decode
from edgewise.wire.messages import Message
from edgewise.wire.mqtt.connection import Incoming
from edgewise.wire.mqtt.link import Link

log = get_logger(__name__)

HEARD_S = 0.3
"""A service that begins takes nothing on before it has listened for so long."""
_AGAIN_S = 20.0
_WAIT_S = 3600.0


class Present(Message):
    """A service is there. `served_s`: for how long it has taken requests; 0 before."""

    id: str
    served_s: NonNegativeFloat


class Duty:
    """Whether this service takes requests.

    Args:
        link: To the broker. Make this before it is started.
        stand_down: Called once, with the reason, when another service was here first.
        heard_s: As `HEARD_S`.
    """

    def __init__(self, link: Link, stand_down: Callable[[str], None], *, heard_s: float = HEARD_S) -> None:
        self._link = link
        self._stand_down = stand_down
        self._heard_s = heard_s
        self._id = uuid.uuid4().hex
        self._since: float | None = None
        self._ended = False
        self._begun = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._answers: set[asyncio.Task[None]] = set()
        link.on(topics.clouds(), self._heard)

    @property
    def stood_down(self) -> bool:
        return self._ended

    def start(self) -> None:
        self._task = asyncio.create_task(self._tell_often(), name="mqtt-duty")

    async def stop(self) -> None:
        self._ended = True
        await end_task(*self._answers, self._task)

    async def wait(self) -> bool:
        """Return once it is known whether this service takes requests."""
        await self._begun.wait()
        return not self._ended

    async def _tell_often(self) -> None:
        """Also after a while, for services that a broker has kept apart."""
        guard = Guard()
        while not self._ended:
            try:
                await self._link.wait_connected(_WAIT_S)
                await self._tell()
            except EdgewiseError as error:
                log.info("mqtt_duty_not_told", reason=error.message)
                await asyncio.sleep(self._heard_s)
                continue
            except Exception as error:  # noqa: BLE001 - outermost frame of a task: a service that never told takes no request
                guard.failed("mqtt_duty_broke", error)
                await asyncio.sleep(self._heard_s)
                continue
            guard.well("mqtt_duty_broke")
            if self._since is None:
                await asyncio.sleep(self._heard_s)
                self._since = time.monotonic()
                self._begun.set()
            await asyncio.sleep(_AGAIN_S)

    async def _tell(self) -> None:
        present = Present(id=self._id, served_s=self._served())
        await self._link.send(topics.cloud(self._link.uid), self._link.sealer.seal(present))

    def _served(self) -> float:
        return 0.0 if self._since is None else time.monotonic() - self._since

    def _heard(self, incoming: Incoming) -> None:
        try:
            other = decode(incoming.payload).read(Present)
        except BadMessage as error:
            log.warning("mqtt_message_dropped", topic=incoming.topic[:200], reason=error.message)
            return
        if other.id == self._id or self._ended or incoming.retain:
            return
        if (other.served_s, other.id) > (self._served(), self._id):
            self._ended = True
            self._begun.set()
            self._stand_down(
                f"Another cloud service takes the requests at this broker ({incoming.topic}), and has done so for longer. This "
                "one takes none over MQTT: end one of them, give each a broker of its own, or let devices reach it over HTTP."
            )
        elif not self._answers:
            task = asyncio.create_task(self._answer(), name="mqtt-duty-answer")
            self._answers.add(task)
            task.add_done_callback(self._answers.discard)

    async def _answer(self) -> None:
        try:
            await self._tell()
        except EdgewiseError as error:
            log.info("mqtt_duty_not_told", reason=error.message)
