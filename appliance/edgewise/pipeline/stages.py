"""The one interface of every stage, here or elsewhere: submit a request, read chunks that carry offsets.

`engine.api.Engine` (text) and `engine.pictures.request.PictureEngine` (pictures) are stages as they stand; so are their
counterparts of `edge.offload`, which run the same work on a cloud.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Literal, Protocol, TypeVar

StageName = Literal["encode", "generate", "diffuse", "speak"]


class Reported(Protocol):
    """How a request stands; `finish` is set on the last chunk only."""

    @property
    def request_id(self) -> str: ...

    @property
    def finish(self) -> str | None: ...

    @property
    def error_code(self) -> str | None: ...

    @property
    def error_message(self) -> str | None: ...


class StageChunk(Reported, Protocol):
    """Items [offset, ...) of a stage's output."""

    @property
    def offset(self) -> int: ...


RequestT = TypeVar("RequestT", contravariant=True)
ChunkT = TypeVar("ChunkT", bound=StageChunk, covariant=True)


class StageStream(Protocol[ChunkT]):
    """Chunks in order; ends after the one with `finish` set."""

    def __aiter__(self) -> AsyncIterator[ChunkT]: ...

    async def __anext__(self) -> ChunkT: ...

    async def aclose(self) -> None:
        """Cancel if still running, within one step, wherever it runs. Safe to call twice."""


class Stage(Protocol[RequestT, ChunkT]):
    """Something that works off requests of one kind."""

    async def submit(self, request: RequestT, /) -> StageStream[ChunkT]:
        """Queue a request; returns once it was accepted, raises an `EdgewiseError` if it was not."""
