"""An answer's pieces on their way, by explicit credit: the receiver grants, the sender pauses at 0.

A piece counts as sent once the broker has it; those that it did not acknowledge before the link broke are sent again. Their
offsets tell a receiver which it has.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass

from edgewise.core.errors import LinkLost
from edgewise.wire import topics
from edgewise.wire.fleet import Ack
from edgewise.wire.mqtt.link import Link

CREDIT = 64
"""Pieces that a receiver has granted by asking."""
_TRY_S = 60.0


@dataclass(slots=True)
class _Piece:
    offset: int
    text: str
    taken: asyncio.Future[None] | None = None

    @property
    def arrived(self) -> bool:
        return self.taken is not None and self.taken.done() and self.taken.exception() is None

    @property
    def lost(self) -> bool:
        return self.taken is None or (self.taken.done() and self.taken.exception() is not None)


class Pieces:
    """Those of one command."""

    def __init__(self, link: Link, id: str, credit: int = CREDIT) -> None:
        self._link = link
        self._id = id
        self._credit = credit
        self._granted = asyncio.Event()
        self._pending: deque[_Piece] = deque()
        self.count = 0

    def grant(self, pieces: int) -> None:
        """Further pieces may be sent."""
        self._credit += pieces
        self._granted.set()

    async def put(self, text: str) -> None:
        """Send one; waits for credit, and for the link."""
        while self._credit <= 0:
            self._granted.clear()
            await self._granted.wait()
        self._credit -= 1
        self._pending.append(_Piece(self.count, text))
        self.count += 1
        await self._push()

    async def _push(self) -> None:
        while self._pending and self._pending[0].arrived:
            self._pending.popleft()
        for piece in self._pending:
            while piece.lost:
                await self._send(piece)

    async def _send(self, piece: _Piece) -> None:
        ack = Ack(state="running", offset=piece.offset, text=piece.text)
        try:
            envelope = self._link.sealer.seal(ack, re=self._id)
            piece.taken = (await self._link.hand(topics.ack(self._link.uid, self._id), envelope)).taken
        except LinkLost:
            await self._wait_link()

    async def _wait_link(self) -> None:
        """Return when the link may be tried again; that it never comes back is the command's timer's business."""
        try:
            await self._link.wait_connected(_TRY_S)
        except LinkLost:
            await asyncio.sleep(1.0)  # a link that was given up for good answers at once
