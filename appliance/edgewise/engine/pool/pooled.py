"""A model of the pool as its callers see it: an engine that is loaded when it is asked."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from edgewise.engine.api import CacheTier, EngineInfo, EngineState, EngineStats, MemoryReport
from edgewise.engine.client import EngineClient
from edgewise.engine.encoders.request import EncodeChunk, EncodeRequest, EncoderInfo
from edgewise.engine.messages import AnyConfig
from edgewise.engine.pictures.request import DiffuseChunk, DiffuseRequest, PictureInfo
from edgewise.engine.pool.pool import EnginePool, ManagedEngine
from edgewise.engine.pool.shares import Share
from edgewise.engine.request import GenerateRequest, TokenChunk
from edgewise.engine.stream import ChunkT

RequestT = TypeVar("RequestT", GenerateRequest, DiffuseRequest, EncodeRequest)
InfoT = TypeVar("InfoT")
ChunkOut = TypeVar("ChunkOut", covariant=True)


class Pooled(Generic[RequestT, ChunkT, InfoT]):
    """An engine for one model of a pool; its key is fixed, its engine process comes and goes."""

    def __init__(self, pool: EnginePool, key: str, config: AnyConfig) -> None:
        self._pool = pool
        self._key = key
        self._config = config

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._key}, {self.state})"

    @property
    def state(self) -> EngineState:
        """ "stopped" while the model is not loaded."""
        engine = self._pool.engine(self._key)
        return "stopped" if engine is None else engine.state

    @property
    def info(self) -> InfoT | None:
        """None while the model is not loaded."""
        engine = self._pool.engine(self._key)
        info: InfoT | None = None if engine is None else engine.info
        return info

    async def submit(self, request: RequestT) -> PooledStream[ChunkT]:
        """See `engine.api.Engine.submit`; loads the model first if need be. It is not unloaded before the stream has ended.

        Raises:
            OutOfMemory, EngineUnavailable: There is no room for it, or not in time; or why it could not be loaded.
        """
        began = time.monotonic()
        engine = await self._pool.acquire(self._key, self._config, request.deadline_s)
        share = self._pool.shares.begin(request.priority, request.key)
        try:
            if not isinstance(request, DiffuseRequest):
                request = replace(request, lead_s=share.lead_s)
            request, wrap = await self._before(engine, request)
            if request.deadline_s is not None:
                request = replace(request, deadline_s=max(0.001, request.deadline_s - (time.monotonic() - began)))
            stream = wrap(await engine.submit(request))
        except BaseException:
            share.close()
            self._pool.release(self._key)
            raise
        return PooledStream(stream, partial(self._leave, share), asyncio.get_running_loop(), share)

    def _leave(self, share: Share) -> None:
        share.close()
        self._pool.release(self._key)

    async def _before(self, engine: ManagedEngine, request: RequestT) -> tuple[RequestT, Callable[[Any], Any]]:
        """Done once the model is loaded: what is submitted, and what may stand between the engine's stream and the caller."""
        del engine
        return request, _as_it_is

    async def load(self) -> InfoT:
        """Load it as a request would, and let it rest. Raises what `submit` raises."""
        engine = await self._pool.acquire(self._key, self._config)
        try:
            info: InfoT = await engine.wait_ready()
            return info
        finally:
            self._pool.release(self._key)

    async def stats(self) -> EngineStats:
        """All zero while the model is not loaded."""
        engine = self._pool.engine(self._key)
        return EngineStats() if engine is None else await engine.stats()

    async def memory(self) -> MemoryReport:
        """All zero while the model is not loaded."""
        engine = self._pool.engine(self._key)
        return MemoryReport(budget_bytes=0, available_bytes=0) if engine is None else await engine.memory()

    async def clear_cache(self, tier: CacheTier | None = None) -> dict[str, int]:
        """Nothing to forget while the model is not loaded."""
        engine = self._pool.engine(self._key)
        return {} if engine is None else await engine.clear_cache(tier)


def _as_it_is(stream: Any) -> Any:
    return stream


class PooledEngine(Pooled[GenerateRequest, TokenChunk, EngineInfo]):
    """Implements `engine.api.Engine`."""

    @property
    def client(self) -> EngineClient | None:
        """The engine process, if the model is loaded and ready."""
        engine = self._pool.engine(self._key)
        return engine if isinstance(engine, EngineClient) and engine.state == "ready" else None

    async def _before(
        self, engine: ManagedEngine, request: GenerateRequest
    ) -> tuple[GenerateRequest, Callable[[Any], Any]]:
        if self._pool.before_submit is None or not isinstance(engine, EngineClient):
            return request, _as_it_is
        return await self._pool.before_submit(engine, request)


class PooledPictures(Pooled[DiffuseRequest, DiffuseChunk, PictureInfo]):
    """Implements `engine.pictures.request.PictureEngine`."""


class PooledEncoder(Pooled[EncodeRequest, EncodeChunk, EncoderInfo]):
    """Implements `engine.encoders.request.EncoderEngine`."""


class _Stream(Protocol[ChunkOut]):
    async def __anext__(self) -> ChunkOut: ...

    async def aclose(self) -> None: ...


class PooledStream(Generic[ChunkT]):
    """Implements `engine.api.TokenStream` and its like; calls `release` once, when the stream ends, is closed or dropped.

    `share` is told what the engine says that it had of the device.
    """

    def __init__(
        self, stream: _Stream[ChunkT], release: Callable[[], None], loop: asyncio.AbstractEventLoop, share: Share
    ) -> None:
        self._share = share
        self._stream = stream
        self._release = release
        self._loop = loop
        self._released = False

    def __aiter__(self) -> AsyncIterator[ChunkT]:
        return self

    async def __anext__(self) -> ChunkT:
        try:
            chunk = await self._stream.__anext__()
        except BaseException:  # the end, a cancellation, or a fault: the stream is over
            self._leave()
            raise
        self._share.told(chunk.stats)
        if chunk.finish is not None:
            self._leave()
        return chunk

    async def aclose(self) -> None:
        try:
            await self._stream.aclose()
        finally:
            self._leave()

    def _leave(self) -> None:
        if not self._released:
            self._released = True
            self._release()

    def __del__(self) -> None:
        # The collector may run in any thread; the pool belongs to the loop's.
        if not self._released:
            self._released = True
            with contextlib.suppress(RuntimeError):  # the loop is closed: the pool is gone or going
                self._loop.call_soon_threadsafe(self._release)
