"""Blobs over MQTT, pulled block by block by whoever receives: with credit, resumable, each block and the whole checked."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable

from edgewise.core.errors import BadMessage, EdgewiseError, LinkLost
from edgewise.core.log import get_logger
from edgewise.wire.asking import BLOCK, BLOCKS, BlobBlock, BlobGet
from edgewise.wire.messages import Blob

log = get_logger(__name__)

PAUSES_S = (2.0, 4.0, 8.0)
"""Seconds without a block after which the first missing one is asked for again, and after the last of them given up. A link
on which a block takes longer is given three times what it took."""
_AHEAD = 2 * BLOCKS
"""Blocks that may wait here for an earlier one, or for their reader."""


class Pull:
    """The receiving side of one blob.

    Blocks are asked for in runs. A run is sent in order, and runs about one after the other: what is missing before a block
    of the same run, or in a run two before it, is lost, and is asked for again at once, it alone. After a silence the
    first missing block is asked for again; when that has come, so should have everything else.

    Args:
        offset: Bytes of it that are here already.
        send: Sends a request to the other side.
    """

    def __init__(self, blob: Blob, offset: int, send: Callable[[BlobGet], Awaitable[None]]) -> None:
        self.blob = blob
        self._have = self._asked = offset
        self._send = send
        self._arrived: deque[BlobBlock] = deque()
        self._ahead: dict[int, bytes] = {}
        self._due: dict[int, _Run] = {}
        self._runs = 0
        self._longest_s = 0.0
        self._wake = asyncio.Event()
        self._error: EdgewiseError | None = None

    def put(self, block: BlobBlock) -> None:
        """A block has arrived. More than was asked for is dropped."""
        if block.sha256 == self.blob.sha256 and len(self._arrived) < _AHEAD:
            self._arrived.append(block)
            self._wake.set()

    def fail(self, error: EdgewiseError) -> None:
        """The other side refuses, or the link is lost."""
        self._error = error
        self._wake.set()

    async def pieces(self) -> AsyncIterator[bytes]:
        """The blob's bytes from `offset` on, in order.

        Raises:
            LinkLost: No block came however often it was asked; or what `fail` was told.
        """
        silent = 0
        while self._have < self.blob.bytes:
            await self._ask_on()
            block = await self._next(max(PAUSES_S[silent], 3 * self._longest_s))
            if block is None:
                silent += 1
                if silent == len(PAUSES_S):
                    raise LinkLost(
                        f"No block of the blob {self.blob.sha256[:12]} came, however often it was asked for."
                    )
                self._runs += 1
                await self._ask((self._have,))
            elif self._fits(block):
                silent = 0
                await self._take(block)
                while self._have in self._ahead:
                    data = self._ahead.pop(self._have)
                    self._have += len(data)
                    yield data

    async def _ask_on(self) -> None:
        """As many as credit allows, once half of it is used; not too far ahead of one that is missing."""
        room = min(BLOCKS - len(self._due), (self._have - self._asked) // BLOCK + _AHEAD)
        if room < BLOCKS // 2 or self._asked >= self.blob.bytes:
            return
        run = range(self._asked, min(self.blob.bytes, self._asked + room * BLOCK), BLOCK)
        self._asked = min(self.blob.bytes, self._asked + room * BLOCK)
        await self._ask(run)

    async def _ask(self, offsets: Iterable[int]) -> None:
        """Ask for blocks, each row of neighbours in one request."""
        rows: list[list[int]] = []
        for offset in sorted(offsets):
            if rows and rows[-1][-1] + BLOCK == offset and len(rows[-1]) < BLOCKS:
                rows[-1].append(offset)
            else:
                rows.append([offset])
        self._runs += 1
        for row in rows:
            run = _Run(self._runs)
            self._due.update(dict.fromkeys(row, run))
            await self._send(BlobGet(sha256=self.blob.sha256, offset=row[0], blocks=len(row)))

    async def _take(self, block: BlobBlock) -> None:
        run = self._due.pop(block.offset, None)
        self._ahead[block.offset] = block.data
        if run is None:
            return
        lost = [
            offset
            for offset, other in self._due.items()
            if (other is run and offset < block.offset) or other.number + 2 <= run.number
        ]
        if lost:
            await self._ask(lost)

    def _fits(self, block: BlobBlock) -> bool:
        """Whether it is a block that is missing here; a damaged one is none, and is found missing."""
        place = block.offset - self._have
        if place < 0 or place >= _AHEAD * BLOCK or block.offset in self._ahead:
            return False
        try:
            whole = len(block.data) == min(BLOCK, self.blob.bytes - block.offset)
            return block.check(self.blob.sha256, block.offset) and whole
        except BadMessage as error:
            log.warning("blob_block_dropped", reason=error.message)
            return False

    async def _next(self, silence_s: float) -> BlobBlock | None:
        """The next block that arrives; None after a silence."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        timer = loop.call_later(silence_s, self._wake.set)
        try:
            if not self._arrived and self._error is None:
                self._wake.clear()
                await self._wake.wait()
        finally:
            timer.cancel()
        if self._error is not None:
            raise self._error
        if not self._arrived:
            return None
        self._longest_s = max(self._longest_s, loop.time() - began)
        return self._arrived.popleft()


class _Run:
    """Neighbouring blocks that were asked for together. `number` grows by one with each question, by two over a silence."""

    def __init__(self, number: int) -> None:
        self.number = number
