"""Answers while they are made: acknowledgements of a command as they come, and the credit that lets a device send further pieces.

A device may send `CREDIT` pieces ahead of what was read. Without a reader every piece counts as read, since the result has all of
them; with several, the fastest one counts, and one that falls too far behind is cut off.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from edgewise.core.errors import LinkLost
from edgewise.wire.fleet import ENDED, Ack

CREDIT = 64
"""Pieces that a device may send ahead; it begins with as many."""
_BEHIND = 4 * CREDIT


class Listener:
    """One reader of one command. Each piece once, in order: a broker may deliver one twice."""

    def __init__(self, on_read: Callable[[], None]) -> None:
        self._on_read = on_read
        self._waiting: deque[Ack] = deque()
        self._some = asyncio.Event()
        self._next = 0
        self._cut = False
        self.read = 0

    def add(self, ack: Ack) -> None:
        if ack.text is not None and ack.offset is not None:
            if ack.offset < self._next:
                return
            self._next = ack.offset + 1
        if len(self._waiting) >= _BEHIND:
            self._cut = True
        else:
            self._waiting.append(ack)
        self._some.set()

    async def next(self) -> Ack:
        """Waits for it.

        Raises:
            LinkLost: More came than this reader took; the command itself goes on.
        """
        while not self._waiting:
            if self._cut:
                raise LinkLost(
                    "The reader of the stream was too slow; the command's result has all of it when it ends."
                )
            self._some.clear()
            await self._some.wait()
        ack = self._waiting.popleft()
        if ack.text is not None and ack.offset is not None:
            self.read = ack.offset + 1
            self._on_read()
        return ack


@dataclass(slots=True)
class _Answer:
    """An answer on its way, counted in pieces. `uid` is known once a piece has come."""

    uid: str = ""
    listeners: set[Listener] = field(default_factory=set)
    arrived: int = 0
    granted: int = CREDIT

    @property
    def read(self) -> int:
        return max((one.read for one in self.listeners), default=self.arrived)


class Streams:
    """Used in the event loop only.

    Args:
        grant: Gives a device credit for further pieces: (uid, command, how many). It returns at once.
    """

    def __init__(self, grant: Callable[[str, str, int], None]) -> None:
        self._grant = grant
        self._answers: dict[str, _Answer] = {}

    def publish(self, uid: str, id: str, ack: Ack) -> None:
        """An acknowledgement came."""
        answer = self._answers.get(id)
        if answer is None:
            if ack.text is None:
                return
            answer = self._answers[id] = _Answer()
        answer.uid = uid
        if ack.text is not None and ack.offset is not None:
            answer.arrived = max(answer.arrived, ack.offset + 1)
        for listener in answer.listeners:
            listener.add(ack)
        if ack.state in ENDED:
            del self._answers[id]
        else:
            self._top_up(id, answer)

    def ended(self, id: str, ack: Ack) -> None:
        """The command has ended without a word of its device."""
        answer = self._answers.pop(id, None)
        for listener in answer.listeners if answer is not None else ():
            listener.add(ack)

    @contextmanager
    def listen(self, id: str) -> Iterator[Listener]:
        """What comes of a command while the block runs."""
        answer = self._answers.setdefault(id, _Answer())
        listener = Listener(lambda: self._top_up(id, answer))
        listener.read = answer.read
        answer.listeners.add(listener)
        try:
            yield listener
        finally:
            answer.listeners.discard(listener)
            if self._answers.get(id) is answer:
                if answer.uid:
                    self._top_up(id, answer)
                elif not answer.listeners:
                    del self._answers[id]

    def _top_up(self, id: str, answer: _Answer) -> None:
        more = answer.read + CREDIT - answer.granted
        if answer.uid and more >= CREDIT // 2:
            answer.granted += more
            self._grant(answer.uid, id, more)
