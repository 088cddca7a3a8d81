"""What a caller asks of an encoder's process and what comes back. Plain frozen data; crosses the process border unchanged.

A result is a pure function of model and input: a request that is begun again gives the same.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from edgewise.core.priority import Priority
from edgewise.engine.api import EngineState, EngineStats, MemoryReport

EncodeFinish = Literal["done", "cancelled", "error"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodeRequest:
    """One input; the other attributes as in `engine.request.GenerateRequest`.

    Attributes:
        content: The input's bytes, whatever the model's role takes: an encoded picture, packed token ids.
        options: Of this kind of model.
    """

    id: str
    content: bytes
    options: Mapping[str, Any] = field(default_factory=dict)
    key: str = ""
    priority: Priority = Priority.INTERACTIVE
    deadline_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodeStats:
    """Facts about a request, times in seconds: in the queue, and computed (with those that were computed together)."""

    queued_s: float
    compute_s: float
    batch: int
    restarts: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodeChunk:
    """The answer: there is one, and it has `finish` set.

    With "done", `result` is what the model's role gives, and `content` are bytes that belong to it.
    """

    request_id: str
    finish: EncodeFinish
    result: Mapping[str, Any] = field(default_factory=dict)
    content: bytes = b""
    stats: EncodeStats | None = None
    error_code: str | None = None
    error_message: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderInfo:
    """What an encoder's process is, as reported when it is ready.

    Attributes:
        numeric_class: Runtime, provider and precision in one string.
    """

    model: str
    digest: str
    role: str
    numeric_class: str
    device: str
    pid: int
    load_s: float


class EncodeStream(Protocol):
    """The answer to one submitted request: an async iterator of one `EncodeChunk`."""

    def __aiter__(self) -> AsyncIterator[EncodeChunk]: ...

    async def __anext__(self) -> EncodeChunk: ...

    async def aclose(self) -> None:
        """Cancel if it has not begun. Safe to call twice."""


class EncoderEngine(Protocol):
    """Submit and observe, as `engine.api.Engine` does for tokens."""

    @property
    def state(self) -> EngineState: ...

    @property
    def info(self) -> EncoderInfo | None:
        """None until it has been ready once."""

    async def submit(self, request: EncodeRequest) -> EncodeStream:
        """Queue a request; returns once it was accepted. Raises as `engine.api.Engine.submit` does."""

    async def stats(self) -> EngineStats: ...

    async def memory(self) -> MemoryReport: ...
