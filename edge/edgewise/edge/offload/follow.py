"""One job from handing it over to its last record, over however many connections that takes."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from typing import Literal, TypeVar

from edgewise.core.errors import LinkLost, QueueFull, ShuttingDown
from edgewise.core.log import get_logger
from edgewise.edge.offload.parting import Parting
from edgewise.edge.offload.transport import NotReached, Traffic, Transport
from edgewise.edge.offload.waiting import Waiting
from edgewise.pipeline.plan import Outside
from edgewise.wire.messages import Chunk, Final, JobControl, JobRequest
from edgewise.wire.stream_log import Place

log = get_logger(__name__)
Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long a lost link is waited for, in seconds: before the job was taken, and once its stream had begun."""

    submit_s: float = 10.0
    stream_s: float = 10.0


def _told_lost(name: str, error: LinkLost) -> None:
    log.info("cloud_link_lost", transport=name, reason=error.message)


def _told_back() -> None:
    log.info("cloud_link_back")


@dataclass(frozen=True, slots=True)
class Road:
    """The way to a cloud, shared by all its engines.

    Attributes:
        transport: The one to use now; may change from call to call.
        parting: Says last words.
        device: This device's name.
        lost: Told of every loss, by the transport's name and the reason.
        back: Told when a stream goes on after one.
        place: Where it leads.
    """

    transport: Callable[[], Transport]
    parting: Parting
    device: str = ""
    lost: Callable[[str, LinkLost], None] = _told_lost
    back: Callable[[], None] = _told_back
    place: Outside = "cloud"

    @property
    def privacy(self) -> Literal["site", "any"]:
        """The label of jobs that go there: what went to an appliance of the site goes no further from it."""
        return "site" if self.place == "peer" else "any"


class JobFollower:
    """Used by one reader.

    Args:
        road: The way there.
        patience: How long a lost link is waited for.
        deadline_s: Seconds from now after which nobody needs the result; None for no limit.

    Attributes:
        again: Makes the job anew from where its reader is, for another transport over which the cloud knows this device by
            another name, and not the job. None, or None of it, stays with the transport that knows it.
    """

    def __init__(self, road: Road, patience: Patience, deadline_s: float | None) -> None:
        self.again: Callable[[], JobRequest | None] | None = None
        self._road = road
        self._patience = patience
        self._deadline = None if deadline_s is None else time.monotonic() + deadline_s
        self._job: JobRequest | None = None
        self._id = ""
        self._transport: Transport | None = None
        self._before = Traffic()
        self._known = Traffic()
        self._left = False

    @property
    def traffic(self) -> Traffic:
        """Bytes that the job has cost so far, on every transport."""
        if self._transport is None or self._job is None:
            return self._before
        now = self._transport.traffic(self._job.key)
        return Traffic(self._before.up + now.up - self._known.up, self._before.down + now.down - self._known.down)

    async def submit(self, job: JobRequest) -> None:
        """Hand the job over.

        Raises:
            LinkLost: The cloud was not reached within `patience.submit_s`.
            EdgewiseError: What the cloud answers.
        """
        self._job = job
        tried: list[Transport] = []

        async def hand(transport: Transport) -> None:
            try:
                await self._hand(transport)
            except (LinkLost, asyncio.CancelledError) as error:
                if not isinstance(error, NotReached):
                    tried.append(transport)  # it may have the job, although nobody told
                raise

        try:
            await self.trying(hand)
        finally:
            for transport in {id(one): one for one in tried}.values():
                if transport is not self._transport:
                    self._road.parting.withdraw(transport, job, unless=self._id)

    async def trying(
        self, work: Callable[[Transport], Awaitable[Result]], *, patience_s: float | None = None
    ) -> Result:
        """Do something over the link, again after every loss, until patience is over (by default `patience.submit_s`)."""
        waiting = Waiting(self._patience.submit_s if patience_s is None else patience_s, self._deadline)
        while True:
            transport = self._road.transport()
            try:
                result = await work(transport)
            except LinkLost as error:
                self._road.lost(transport.name, error)
                await waiting.pause(error)
            else:
                return result

    async def items(
        self, place: Callable[[], Place], take: Callable[[Chunk | Final], Item | None]
    ) -> AsyncGenerator[Item, None]:
        """What `take` makes of each event, up to the last record; None is left out.

        Args:
            place: How far the reader is, asked before each connection.
            take: May raise `LinkLost` for what must be asked for again.

        Raises:
            LinkLost, QueueFull: Patience is over.
            DeadlineExceeded: The deadline is.
            EdgewiseError: What the cloud or `take` says.
        """
        waiting = Waiting(self._patience.stream_s, self._deadline)
        while True:
            transport = self._road.transport()
            try:
                transport = await self._where(transport)
                assert self._job is not None
                async with contextlib.aclosing(transport.events(self._job.key, place())) as events:
                    async for event in events:
                        if waiting.progress():
                            self._road.back()
                        item = take(event)
                        if item is not None:
                            yield item
                        if isinstance(event, Final):
                            return
                raise LinkLost("The cloud ended the stream before its last record.")
            except QueueFull as error:  # of streams: this device reads as many as it may, and one of them ends
                await waiting.pause(error)
            except (LinkLost, ShuttingDown) as error:
                lost = error if isinstance(error, LinkLost) else LinkLost(error.message)
                self._road.lost(transport.name, lost)
                await waiting.pause(lost)

    def leave(self, op: Literal["ack", "cancel"], place: Place) -> None:
        """Say the last word, once; in the background."""
        if self._left:
            return
        self._left = True
        used = self.traffic  # the transport forgets it with the job
        self._say(op, place)
        self._before, self._job = used, None

    async def _hand(self, transport: Transport) -> None:
        assert self._job is not None
        self._id = (await transport.submit(self._job)).id
        self._transport = transport

    async def _where(self, transport: Transport) -> Transport:
        """The transport that knows the job. Where the road leads over another one now, it goes on there; where the cloud knows
        this device by another name over that one, it is begun there from where it is."""
        if self._transport is None:
            await self._hand(transport)
        elif transport is not self._transport:
            assert self._job is not None
            if await transport.knows(self._job.key, self._id):
                self._before, self._known = self.traffic, transport.traffic(self._job.key)
                self._transport = transport
                return transport
            job = None if self.again is None else self.again()
            if job is None:
                return self._transport
            self._before, self._known = self.traffic, Traffic()
            self._say("cancel", Place(0, 0))
            self._job, self._transport = job, None
            await self._hand(transport)
        return transport

    def _say(self, op: Literal["ack", "cancel"], place: Place) -> None:
        if self._transport is not None and self._job is not None:
            control = JobControl(key=self._job.key, op=op, after=str(place), done=True)
            self._road.parting.say(self._transport, control)
