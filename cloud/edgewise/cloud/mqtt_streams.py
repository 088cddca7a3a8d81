"""Streams that go down to devices over MQTT: what follows the place that a device has named last, within its credit.

A stream answers a question of its device, `resume`, and every event says which (`Envelope.re`). So a device can tell what is
missing in the stream that it asked for from what was on its way before it asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing

from edgewise.core.errors import EdgewiseError, LinkLost
from edgewise.core.log import get_logger
from edgewise.core.patience import end_task, within
from edgewise.wire.asking import CREDIT, refusal
from edgewise.wire.envelope import Envelope
from edgewise.wire.messages import Chunk, Final, Refused
from edgewise.wire.stream_log import Place

log = get_logger(__name__)

IDLE_S = 600.0
"""A stream whose consumer grants nothing for so long is ended; it can be resumed."""
_MAX_CREDIT = 4 * CREDIT

Source = AsyncGenerator[Chunk | Final, None]
Send = Callable[[str, Chunk | Final | Refused], Awaitable[None]]


class Outflow:
    """One stream on its way to one device.

    Args:
        question: The message that asked for it.
        after: The place that it begins after.
        credit: Chunks that may be on their way at once: sent, and not yet read as far as the device has said.
        send: Sends one event, in answer to the question with an id; raises `LinkLost` while there is no broker.
        back: Returns once the link is back.
    """

    def __init__(
        self,
        question: Envelope,
        after: Place,
        credit: int,
        source: Source,
        send: Send,
        back: Callable[[], Awaitable[None]],
    ) -> None:
        self._question = question
        self._sent = after.offset
        self._unread: list[int] = []
        self._credit = min(credit, _MAX_CREDIT)
        self._source = source
        self._send = send
        self._back = back
        self._granted = asyncio.Event()
        self.task: asyncio.Task[None] | None = None

    def older(self, question: Envelope) -> bool:
        """Whether a question was asked after the one that is answered here; a broker may deliver it late, or twice."""
        return self._question.place < question.place

    def goes_on(self, question: Envelope, after: Place, credit: int) -> bool:
        """Take a later question as the one that is answered, if the device has all that was sent; otherwise what it lacks
        must be sent again, by another stream."""
        if self._sent != after.offset:
            return False
        self._question = question
        self.grant(after, credit)
        return True

    def grant(self, after: Place, credit: int) -> None:
        """The device has read everything up to `after`. Said twice or late, it changes nothing; lost, the next word heals it."""
        self._unread = [end for end in self._unread if end > after.offset]
        self._credit = min(credit, _MAX_CREDIT) or self._credit
        self._granted.set()

    async def run(self) -> None:
        """To the final record."""
        async with aclosing(self._source) as events:
            try:
                async for event in events:
                    if isinstance(event, Chunk):
                        await self._pay(event.offset + event.count)
                    await self._deliver(event)
            except EdgewiseError as error:
                await self._deliver(refusal(error))

    async def _pay(self, end: int) -> None:
        while len(self._unread) >= self._credit:
            self._granted.clear()
            await within(self._granted.wait(), IDLE_S, lambda: LinkLost("The device takes nothing more."))
        self._unread.append(end)
        self._sent = max(self._sent, end)

    async def _deliver(self, event: Chunk | Final | Refused) -> None:
        while True:
            try:
                return await self._send(self._question.id, event)
            except LinkLost:
                await self._back()


class Outflows:
    """All of them, by (device, key); one that is asked for anew takes the place of the one before.

    Args:
        limit: Of streams at once, over all devices.
    """

    def __init__(self, limit: int = 1024) -> None:
        self._limit = limit
        self._flows: dict[tuple[str, str], Outflow] = {}

    @property
    def full(self) -> bool:
        return len(self._flows) >= self._limit

    def get(self, uid: str, key: str) -> Outflow | None:
        return self._flows.get((uid, key))

    async def begin(self, uid: str, key: str, flow: Outflow) -> None:
        """Let it run; the one before has ended when this returns."""
        before = self._flows.get((uid, key))
        self._flows[uid, key] = flow
        if before is not None and before.task is not None:
            before.task.cancel()
            await asyncio.wait({before.task})
        if self._flows.get((uid, key)) is flow:  # not replaced meanwhile
            flow.task = asyncio.create_task(self._run(uid, key, flow), name=f"mqtt-stream-{uid}")

    async def stop(self) -> None:
        """End all."""
        tasks = [flow.task for flow in self._flows.values() if flow.task is not None]
        self._flows.clear()
        await end_task(*tasks)

    async def _run(self, uid: str, key: str, flow: Outflow) -> None:
        try:
            await flow.run()
        except EdgewiseError as error:
            log.info("mqtt_stream_ended", device=uid, job=key, reason=error.message)
        except Exception:  # a fault in one stream concerns its device only; it asks again
            log.exception("mqtt_stream_failed", device=uid, job=key)
        finally:
            if self._flows.get((uid, key)) is flow:
                del self._flows[uid, key]
