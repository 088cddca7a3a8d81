"""Takes commands: on disk, then accepted, then done. Answers those that come again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from edgewise.core.clock import Clock
from edgewise.core.errors import BadMessage, LinkLost, StorageError
from edgewise.core.log import get_logger
from edgewise.core.patience import end_task
from edgewise.edge.agent.commands.inbox import Inbox, Taken
from edgewise.edge.agent.commands.intake import Arrived, read_command
from edgewise.edge.agent.commands.lanes import Lanes
from edgewise.edge.agent.commands.operation import Operation
from edgewise.edge.agent.commands.record import Record
from edgewise.edge.agent.mail import Letter
from edgewise.edge.agent.moments import Moments
from edgewise.edge.agent.uplink.sender import Sender
from edgewise.wire import topics
from edgewise.wire.envelope import decode
from edgewise.wire.fleet import Ack, Control, Received
from edgewise.wire.mqtt.link import Link

log = get_logger(__name__)

OUTBOX = "outbox"
"""In the place of a command's id: the fleet says which rows it has."""


class Desk:
    """Args:
    operations: By their names.
    on_full: The disk has no room for a command: make some.
    on_end: Told how a command has ended.
    on_retained: Told the operation of a command that was retained, which is never done.
    """

    def __init__(
        self,
        link: Link,
        inbox: Inbox,
        sender: Sender,
        operations: Mapping[str, Operation],
        moments: Moments,
        clock: Clock,
        *,
        on_full: Callable[[], Awaitable[None]],
        on_retained: Callable[[str], Awaitable[None]],
        on_end: Callable[[Record, Ack], None],
    ) -> None:
        self._link = link
        self._inbox = inbox
        self._sender = sender
        self._operations = operations
        self._clock = clock
        self._on_full = on_full
        self._on_retained = on_retained
        self._on_end = on_end
        self._own = f"{topics.live(link.uid).rpartition('/')[0]}/"
        self._farewells: set[asyncio.Task[None]] = set()
        self.lanes = Lanes(inbox, operations, link, moments, clock, tell=self.tell, on_end=self._ended, on_full=on_full)

    async def command(self, letter: Letter) -> None:
        """A message on `dn/cmd/<op>`. One that is retained would be done at each connect: it is refused."""
        if letter.retained:
            await self._on_retained(letter.name)
            return
        waited_s = self._clock.monotonic() - letter.arrived_s
        arrived = read_command(letter.payload, letter.name, self._operations, waited_s=waited_s, own=self._own)
        taken = await self._take(arrived)
        record = taken.record
        if not taken.fresh:
            await self._answer_again(taken)
        elif record.ended:
            self._sender.wake()
            self._tell_reply(record, record.ack())
        else:
            await self.tell(record.id, record.ack())
            self.lanes.wake(record.lane)

    async def control(self, letter: Letter) -> None:
        """A message on `dn/ctl/<id>`."""
        envelope = decode(letter.payload)
        if letter.name == OUTBOX:
            await self._sender.received(envelope.read(Received).ids)
        else:
            await self.lanes.control(letter.name, envelope.read(Control))

    async def tell(self, id: str, ack: Ack) -> None:
        """Send an ack that is not kept: the next one, or the answer to a repeat, says more."""
        try:
            await self._link.send(topics.ack(self._link.uid, id), self._link.sealer.seal(ack, re=id))
        except LinkLost as error:
            log.debug("ack_not_told", command=id, state=ack.state, reason=error.message)

    async def stop(self) -> None:
        await self.lanes.stop()
        await end_task(*self._farewells)

    async def _take(self, arrived: Arrived) -> Taken:
        """On disk; a full one is given room first. Raises `StorageError` where it has none: then it was not accepted, and whoever
        sent the command sends it again."""
        try:
            return await self._inbox.take(arrived.order, arrived.refusal)
        except StorageError:
            await self._on_full()
            return await self._inbox.take(arrived.order, arrived.refusal)

    async def _answer_again(self, taken: Taken) -> None:
        """What is known of it. An end that was received already is told once more: it was lost on the other side."""
        log.info("command_repeated", command=taken.record.id, state=taken.record.state)
        if taken.told:
            self._sender.again()
        else:
            await self.tell(taken.record.id, taken.record.ack())

    def _ended(self, record: Record, ack: Ack) -> None:
        self._sender.wake()
        self._on_end(record, ack)
        self._tell_reply(record, ack)

    def _tell_reply(self, record: Record, ack: Ack) -> None:
        """The end also on the topic that the command named, once: for programs that wait there."""
        if record.reply is None:
            return
        task = asyncio.create_task(self._reply(record.reply, record.id, ack), name=f"reply-{record.id}")
        self._farewells.add(task)
        task.add_done_callback(self._farewells.discard)

    async def _reply(self, topic: str, id: str, ack: Ack) -> None:
        try:
            await self._link.send(topic, self._link.sealer.seal(ack, re=id))
        except (LinkLost, BadMessage) as error:
            log.info("reply_not_told", command=id, reason=error.message)
