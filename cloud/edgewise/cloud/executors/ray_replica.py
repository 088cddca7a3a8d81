"""What runs inside a Ray actor: one supervised engine, asked by one service. Imports no Ray and no torch."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass

from edgewise.core.errors import EdgewiseError
from edgewise.engine.api import EngineInfo, TokenStream
from edgewise.engine.client import EngineClient
from edgewise.engine.config import EngineConfig
from edgewise.engine.messages import error_from
from edgewise.engine.request import GenerateRequest, TokenChunk


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """An error of ours as plain data: what crosses between processes must not depend on how exceptions are pickled."""

    code: str
    message: str
    param: str | None = None
    retry_after_s: float | None = None

    @classmethod
    def of(cls, error: EdgewiseError) -> Refusal:
        return cls(code=error.code, message=error.message, param=error.param, retry_after_s=error.retry_after_s)

    def error(self) -> EdgewiseError:
        return error_from(self.code, self.message, param=self.param, retry_after_s=self.retry_after_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A replica that can be asked."""

    info: EngineInfo
    pid: int


class Replica:
    """One engine process below this one, with its supervisor.

    If the engine dies, its requests go on here, as on a device. If this process dies, its engine dies with it, and the service
    goes on elsewhere.

    Args:
        config: How the engine is built.
        factory: See `EngineClient`.
    """

    def __init__(self, config: EngineConfig, factory: str) -> None:
        self._config = config
        self._factory = factory
        self._engine: EngineClient | None = None
        self._streams: dict[int, TokenStream | None] = {}

    async def open(self, timeout_s: float) -> Opened | Refusal:
        """Load the model; returns once the engine can work, or why it cannot."""
        self._engine = EngineClient(self._config, factory=self._factory)
        await self._engine.start()
        try:
            info = await self._engine.wait_ready(timeout_s)
        except EdgewiseError as error:
            await self._engine.stop()
            return Refusal.of(error)
        return Opened(info=info, pid=os.getpid())

    async def generate(self, ticket: int, request: GenerateRequest) -> AsyncIterator[TokenChunk | Refusal]:
        """The chunks of a request; a refusal instead of them, if it is refused. `ticket` names this call for `cancel`."""
        assert self._engine is not None
        self._streams[ticket] = None
        try:
            stream = await self._engine.submit(request)
        except EdgewiseError as error:
            self._streams.pop(ticket, None)
            yield Refusal.of(error)
            return
        try:
            if ticket not in self._streams:  # cancelled meanwhile
                return
            self._streams[ticket] = stream
            async for chunk in stream:
                yield chunk
        finally:
            self._streams.pop(ticket, None)
            await stream.aclose()

    async def cancel(self, ticket: int) -> None:
        """End a call of `generate`; one that has ended is ignored."""
        stream = self._streams.pop(ticket, None)
        if stream is not None:
            await stream.aclose()

    async def live(self) -> None:
        """Never returns: whoever awaits it learns of this process's end."""
        await asyncio.Event().wait()

    async def close(self) -> None:
        """End the engine."""
        if self._engine is not None:
            await self._engine.stop()
