"""What a caller asks of an encoder's process and what comes back. Plain frozen data; crosses the process border unchanged.

A result is a function of model and input: a request that is begun again gives the same, and one whose answer comes in parts, as
speech does, goes on at the first part that is missing.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field, replace
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
        skip: Parts of the answer that are there already, from its beginning on.
    """

    id: str
    content: bytes
    options: Mapping[str, Any] = field(default_factory=dict)
    skip: int = 0
    key: str = ""
    lead_s: float = 0.0
    priority: Priority = Priority.INTERACTIVE
    deadline_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodeStats:
    """Facts about a request, times in seconds: in the queue, and computed (with those that were computed together), of which
    `device_s` is its own share."""

    queued_s: float
    compute_s: float
    batch: int
    restarts: int = 0
    device_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodeChunk:
    """The answer, or its part number `offset`; the last one, and only it, has `finish` set.

    With None and "done", `result` is what the model's role gives, and `content` are bytes that belong to it.
    """

    request_id: str
    finish: EncodeFinish | None
    offset: int = 0
    result: Mapping[str, Any] = field(default_factory=dict)
    content: bytes = b""
    stats: EncodeStats | None = None
    error_code: str | None = None
    error_message: str | None = None


def merge_parts(first: EncodeChunk, second: EncodeChunk) -> EncodeChunk:
    """Two parts that follow each other, as one: content joined, times added, the rest that of the second."""
    stats = second.stats
    if stats is not None and first.stats is not None:
        stats = replace(
            stats,
            queued_s=first.stats.queued_s,
            compute_s=first.stats.compute_s + stats.compute_s,
            device_s=first.stats.device_s + stats.device_s,
        )
    return replace(second, offset=first.offset, content=first.content + second.content, stats=stats or first.stats)


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
    """The answer to one submitted request: an async iterator of `EncodeChunk` that ends after the one with `finish` set."""

    def __aiter__(self) -> AsyncIterator[EncodeChunk]: ...

    async def __anext__(self) -> EncodeChunk: ...

    async def aclose(self) -> None:
        """Cancel what has not begun of it. Safe to call twice."""


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
