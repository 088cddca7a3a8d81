"""The consumer's end of a request: a queue of chunks for one event loop, and the stream that reads it."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any, Generic, Protocol, TypeVar

from edgewise.engine.request import TokenChunk
from edgewise.engine.speech import joined

MERGE_ABOVE = 64
"""Chunks waiting for a slow consumer before further ones are merged into the last."""


class Chunk(Protocol):
    """What a request's answer comes in."""

    @property
    def finish(self) -> str | None:
        """Set on the last one."""

    @property
    def stats(self) -> object:
        """The engine's account, where the chunk has one."""


ChunkT = TypeVar("ChunkT", bound=Chunk)


def merge_tokens(first: TokenChunk, second: TokenChunk) -> TokenChunk:
    """Two chunks of one request that follow each other, as one."""
    logprobs = None if first.logprobs is None and second.logprobs is None else (
        (first.logprobs or ()) + (second.logprobs or ())
    )  # fmt: skip
    stats = second.stats or first.stats
    return replace(
        second,
        offset=first.offset,
        tokens=first.tokens + second.tokens,
        logprobs=logprobs,
        stats=stats,
        sound=joined(first.sound, second.sound),
        gaps=first.gaps + second.gaps,
    )


class Mailbox(Generic[ChunkT]):
    """Chunks of one request, from the router to one consumer. Used from the event loop's thread only.

    Args:
        merge: Makes one of two chunks that follow each other.
    """

    def __init__(self, merge: Callable[[Any, Any], Any] = merge_tokens) -> None:
        self._merge = merge
        self._chunks: deque[ChunkT] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._closed = False

    def __len__(self) -> int:
        return len(self._chunks)

    def put(self, chunk: ChunkT) -> None:
        if self._closed:
            return
        if len(self._chunks) > MERGE_ABOVE:
            self._chunks.append(self._merge(self._chunks.pop(), chunk))
        else:
            self._chunks.append(chunk)
        self._wake()

    def close(self) -> None:
        """Drop what is unread; a waiting reader gets None."""
        self._closed = True
        self._chunks.clear()
        self._wake()

    async def get(self) -> ChunkT | None:
        """The next chunk; None once the mailbox is closed. One reader at a time."""
        if self._waiter is not None:
            raise RuntimeError("a token stream has one reader")
        while not self._chunks:
            if self._closed:
                return None
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        return self._chunks.popleft()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class RequestStream(Generic[ChunkT]):
    """Implements `engine.api.TokenStream` and `engine.pictures.request.PictureStream`.

    The request is cancelled when the stream is closed, when the task that reads it is cancelled, and when the stream is dropped
    without having been read to its end. Therefore a reader that wants to do something between chunks (a keep-alive) must not
    put a time limit on `__anext__` itself, which would cancel the read; it waits with `asyncio.wait` on a task.
    """

    def __init__(self, mailbox: Mailbox[ChunkT], cancel: Callable[[], None], loop: asyncio.AbstractEventLoop) -> None:
        self._mailbox = mailbox
        self._cancel = cancel
        self._loop = loop
        self._done = False

    def __aiter__(self) -> AsyncIterator[ChunkT]:
        return self

    async def __anext__(self) -> ChunkT:
        if self._done:
            raise StopAsyncIteration
        try:
            chunk = await self._mailbox.get()
        except asyncio.CancelledError:
            self._leave()
            raise
        if chunk is None:
            raise StopAsyncIteration
        if chunk.finish is not None:
            self._done = True
        return chunk

    async def aclose(self) -> None:
        self._leave()

    def _leave(self) -> None:
        if not self._done:
            self._done = True
            self._mailbox.close()
            self._cancel()

    def __del__(self) -> None:
        # The collector may run in any thread; the router belongs to the loop's.
        if not self._done:
            with contextlib.suppress(RuntimeError):  # the loop is closed: the engine is gone or going
                self._loop.call_soon_threadsafe(self._cancel)
