"""Blobs over MQTT, pulled block by block by whoever receives: with credit, resumable, each block and the whole checked."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable

from edgewise.core.errors import BadMessage, EdgewiseError, LinkLost
from edgewise.core.log import get_logger
from edgewise.wire.asking import BLOCK, BLOCKS, BlobBlock, BlobGet
from edgewise.wire.messages import Blob

log = get_logger(__name__)

SILENCE_S = 5.0
_TRIES = 3


class Pull:
    """The receiving side of one blob.

    Args:
        offset: Bytes of it that are here already.
        send: Sends a request to the other side.
        silence_s: Seconds without a block after which it is asked again, from the first one that is missing.
    """

    def __init__(
        self, blob: Blob, offset: int, send: Callable[[BlobGet], Awaitable[None]], *, silence_s: float | None = None
    ) -> None:
        self.blob = blob
        self._offset = offset
        self._send = send
        self._silence_s = SILENCE_S if silence_s is None else silence_s
        self._blocks: deque[BlobBlock] = deque()
        self._wake = asyncio.Event()
        self._error: EdgewiseError | None = None

    def put(self, block: BlobBlock) -> None:
        """A block has arrived. More than was asked for is dropped."""
        if block.sha256 == self.blob.sha256 and len(self._blocks) < 2 * BLOCKS:
            self._blocks.append(block)
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
        have = asked = self._offset
        silent = 0
        while have < self.blob.bytes:
            waiting = -(-(asked - have) // BLOCK)
            if waiting <= BLOCKS // 2 and asked < self.blob.bytes:
                await self._send(BlobGet(sha256=self.blob.sha256, offset=asked, blocks=BLOCKS - waiting))
                asked = min(self.blob.bytes, asked + (BLOCKS - waiting) * BLOCK)
            block = await self._next()
            if block is None:
                silent += 1
                if silent == _TRIES:
                    raise LinkLost(
                        f"No block of the blob {self.blob.sha256[:12]} came for {silent * self._silence_s:g} s."
                    )
                asked = have
            elif self._fits(block, have):
                silent = 0
                have += len(block.data)
                yield block.data

    def _fits(self, block: BlobBlock, have: int) -> bool:
        try:
            return block.check(self.blob.sha256, have) and have + len(block.data) <= self.blob.bytes
        except BadMessage as error:
            log.warning("blob_block_dropped", reason=error.message)
            return False

    async def _next(self) -> BlobBlock | None:
        """The next block that arrives; None after a silence."""
        loop = asyncio.get_running_loop()
        timer = loop.call_later(self._silence_s, self._wake.set)
        try:
            if not self._blocks and self._error is None:
                self._wake.clear()
                await self._wake.wait()
        finally:
            timer.cancel()
        if self._error is not None:
            raise self._error
        return self._blocks.popleft() if self._blocks else None
