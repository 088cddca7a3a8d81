"""One stream of the cloud's as it arrives over MQTT: in order, whole, and asked for again where something is missing.

Every event says which question (`resume`) it answers. Only in the answer to the latest one does a gap mean that something was
lost: what was on its way before that question leaves gaps of its own. It is asked for at once then, from the place
that is missing. What no later event betrays (the last one before a pause, a question, a grant of credit) is found by asking
after a short silence; a cloud that lives answers at once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, NamedTuple

from edgewise.core.errors import LinkLost
from edgewise.wire.asking import CREDIT, told
from edgewise.wire.messages import Accepted, Chunk, Event, Final, Refused
from edgewise.wire.stream_log import Place

PAUSES_S = (1.0, 2.0, 2.0, 2.0)
"""Seconds of silence after which a stream is asked for again, and after the last of them given up."""
_AT_ONCE = 4
"""Questions without progress after which only a silence leads to the next one."""


class Question(NamedTuple):
    """A `resume` on its way. `taken` is done once the broker has it."""

    id: str
    taken: asyncio.Future[None]


class Inflow:
    """Used by one reader.

    Args:
        after: The place that the reader has.
        ended: Done once the connection to the broker is over.
        resume: Asks for what follows a place.
        grant: Says that everything up to a place has been read.
    """

    def __init__(
        self,
        after: Place,
        ended: asyncio.Future[Any],
        resume: Callable[[Place], Awaitable[Question]],
        grant: Callable[[Place], Awaitable[None]],
    ) -> None:
        self._place = after
        self._ended = ended
        self._resume, self._grant = resume, grant
        self._arrived: deque[tuple[str | None, Event]] = deque()
        self._wake = asyncio.Event()
        self._question: Question | None = None
        self._silent = self._asked = self._read = 0
        self._until = 0.0

    def put(self, question: str | None, event: Event) -> None:
        """An event has arrived. Credit bounds them; what is more is dropped, and found missing by the reader."""
        if len(self._arrived) < 2 * CREDIT:
            self._arrived.append((question, event))
            self._wake.set()

    async def events(self) -> AsyncGenerator[Chunk | Final, None]:
        """See `Transport.events`."""
        self._ended.add_done_callback(self._woken)
        try:
            await self._ask()
            while True:
                arrived = await self._next()
                if arrived is None:
                    await self._ask_after_silence()
                    continue
                question, event = arrived
                current = self._question is not None and question == self._question.id
                if isinstance(event, Final) and not self._skips(event):
                    yield event
                    return
                if isinstance(event, Chunk) and not self._skips(event):
                    if await self._take(event):
                        yield event
                elif current:
                    await self._meet(event)
        finally:
            self._ended.remove_done_callback(self._woken)

    async def _take(self, chunk: Chunk) -> bool:
        """Go on to the end of a chunk; whether it has anything new."""
        self._alive(0)
        end = chunk.offset + chunk.count
        fresh = end > self._place.offset or chunk.count == 0
        if fresh:
            self._asked = 0
            self._place = Place(chunk.attempt, max(end, self._place.offset))
        self._read += 1
        if self._read % (CREDIT // 2) == 0:
            await self._grant(self._place)
        return fresh

    async def _meet(self, event: Event) -> None:
        """Something of the answer to the latest question that is not the next part of the stream."""
        if isinstance(event, Refused):
            raise told(event)
        if isinstance(event, Accepted):
            self._alive(min(self._silent, 1))
        elif self._asked < _AT_ONCE:
            await self._ask()

    def _skips(self, event: Chunk | Final) -> bool:
        """Whether something before the event is missing."""
        if isinstance(event, Final):
            return event.state == "succeeded" and event.count > self._place.offset
        return event.offset > self._place.offset

    async def _ask(self) -> None:
        if self._ended.done():
            raise self._lost()
        self._asked += 1
        self._question = await self._resume(self._place)
        self._alive(self._silent)

    async def _ask_after_silence(self) -> None:
        assert self._question is not None
        if not self._question.taken.done():  # a slow link has it; of one that is dead, the connection ends
            self._alive(self._silent)
            return
        self._question.taken.result()
        if self._silent + 1 == len(PAUSES_S):
            raise LinkLost("The cloud says nothing more of a stream over MQTT.")
        self._silent += 1
        self._asked = 0
        await self._ask()

    def _alive(self, silent: int) -> None:
        """Something was said; silence begins anew, the `silent`-th in a row."""
        self._silent = silent
        self._until = asyncio.get_running_loop().time() + PAUSES_S[silent]

    async def _next(self) -> tuple[str | None, Event] | None:
        """The next event; None after a silence.

        Raises:
            LinkLost: The connection is over.
        """
        if not self._arrived and not self._ended.done():
            self._wake.clear()
            timer = asyncio.get_running_loop().call_at(self._until, self._wake.set)
            try:
                await self._wake.wait()
            finally:
                timer.cancel()
        if self._arrived:
            return self._arrived.popleft()
        if self._ended.done():
            raise self._lost()
        return None

    def _woken(self, _: object) -> None:
        self._wake.set()

    def _lost(self) -> LinkLost:
        return LinkLost("The link to the broker was lost in a stream.")
