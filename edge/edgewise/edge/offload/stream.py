"""The life of a stream of the cloud's, whatever it brings: when it is read to its end, closed, cancelled or dropped, the cloud is
told, once."""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from typing import Any, ClassVar, Generic, Literal, Protocol, TypeVar

from edgewise.core.errors import Cancelled, DeadlineExceeded, EngineFault
from edgewise.edge.offload.follow import JobFollower
from edgewise.edge.offload.waiting import being_read
from edgewise.wire.messages import Final, State
from edgewise.wire.stream_log import Place

_CODES: Mapping[State, str] = {"expired": DeadlineExceeded.code, "cancelled": Cancelled.code}


class _Chunk(Protocol):
    @property
    def finish(self) -> Any: ...


ChunkT = TypeVar("ChunkT", bound=_Chunk)


class JobStream(ABC, Generic[ChunkT]):
    """An iterator of chunks that ends after the one with `finish` set. A read that is cancelled cancels the job."""

    CANCELS: ClassVar[frozenset[str]]
    """Ends after which the job is cancelled; after any other it is acknowledged."""

    def __init__(self, follower: JobFollower) -> None:
        self._follower = follower
        self._loop = asyncio.get_running_loop()
        self._chunks = self._run()
        self._done = False

    def __aiter__(self) -> AsyncIterator[ChunkT]:
        return self

    async def __anext__(self) -> ChunkT:
        if self._done:
            raise StopAsyncIteration
        try:
            chunk = await self._chunks.__anext__()
        except BaseException:
            self._leave("cancel")
            raise
        if chunk.finish is not None:
            self._leave("cancel" if chunk.finish in self.CANCELS else "ack")
            await self._chunks.aclose()
        return chunk

    async def aclose(self) -> None:
        self._leave("cancel")
        if not being_read(self._chunks):  # else its reader hears of the end from the cloud
            await self._chunks.aclose()

    def __del__(self) -> None:
        if not getattr(self, "_done", True):
            with contextlib.suppress(RuntimeError):  # the loop is closed, and the link with it
                self._loop.call_soon_threadsafe(self._leave, "cancel")

    def _leave(self, op: Literal["ack", "cancel"]) -> None:
        if not self._done:
            self._done = True
            self._ended()
            self._follower.leave(op, self._reached)

    @property
    @abstractmethod
    def _reached(self) -> Place:
        """How far it has been read."""

    def _ended(self) -> None:
        """Called once, before the cloud is told."""

    @abstractmethod
    def _run(self) -> AsyncGenerator[ChunkT, None]:
        """Every chunk up to the last; an end without an answer is a chunk too, as the local engine's."""


def failure(final: Final) -> tuple[str, str]:
    """Code and message of a job that did not succeed."""
    code = final.error_code or _CODES.get(final.state, EngineFault.code)
    return code, final.error_message or f"The cloud ended the job as {final.state}."
