"""What a stage has made so far, read by any number of others, each at its own pace."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from edgewise.core.privacy import Privacy
from edgewise.pipeline.chains.kinds import Value
from edgewise.pipeline.chains.parts import Sentences


class Output:
    """Text that grows, or one picture; complete once closed.

    Attributes:
        privacy: Strictest label of what went into it; readers inherit it. It is final when anything can be read.
    """

    def __init__(self, privacy: Privacy) -> None:
        self.privacy = privacy
        self._texts: list[str] = []
        self._media: list[bytes] = []
        self._closed = False
        self._changed = asyncio.Event()

    def feed(self, text: str) -> None:
        if text:
            self._texts.append(text)
            self._rouse()

    def keep(self, media: bytes) -> None:
        self._media.append(media)

    def close(self) -> None:
        self._closed = True
        self._rouse()

    @property
    def text(self) -> str:
        return "".join(self._texts)

    @property
    def media(self) -> tuple[bytes, ...]:
        """Pictures, in the order of pieces."""
        return tuple(self._media)

    async def whole(self) -> Value:
        """Its text, or its (first) picture, once all of it is there."""
        await self.closed()
        return self._media[0] if self._media else self.text

    async def closed(self) -> None:
        while not self._closed:
            await self._changed.wait()

    async def texts(self) -> AsyncIterator[str]:
        """Its text in pieces, as they come."""
        seen = 0
        while True:
            while seen < len(self._texts):
                seen += 1
                yield self._texts[seen - 1]
            if self._closed:
                return
            await self._changed.wait()

    async def sentences(self) -> AsyncIterator[str]:
        """Each as soon as it is whole."""
        cutter = Sentences()
        async for text in self.texts():
            for sentence in cutter.feed(text):
                yield sentence
        for sentence in cutter.end():
            yield sentence

    def _rouse(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
