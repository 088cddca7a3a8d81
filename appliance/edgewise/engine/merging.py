"""Token chunks that wait to be sent, grown together by request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from edgewise.engine.request import TokenChunk, TokenLogprobs
from edgewise.engine.speech import joined

MAX_FRAME_TOKENS = 2048
"""Tokens in one frame: with 20 alternatives each, well below the transport's limit."""


class _Unsent:
    """One request's. `last` is its newest chunk, whose ending is that of the whole."""

    __slots__ = ("gaps", "last", "logprobs", "offset", "sound", "stats", "tokens")

    def __init__(self, chunk: TokenChunk, gaps: Sequence[float]) -> None:
        self.last = chunk
        self.offset = chunk.offset
        self.tokens = [*chunk.tokens]
        self.gaps = [*gaps]
        self.logprobs: list[TokenLogprobs] | None = None if chunk.logprobs is None else [*chunk.logprobs]
        self.stats = chunk.stats
        self.sound = chunk.sound

    def grow(self, chunk: TokenChunk, gaps: Sequence[float]) -> None:
        self.last = chunk
        self.tokens += chunk.tokens
        self.gaps += gaps
        if chunk.logprobs is not None:
            self.logprobs = [*(self.logprobs or ()), *chunk.logprobs]
        # Statistics and sound come with some chunks only; merging must not lose them.
        self.stats = chunk.stats or self.stats
        self.sound = joined(self.sound, chunk.sound)

    def split(self, room: int) -> TokenChunk:
        """Remove the first `room` tokens; what has an end, statistics or sound stays with the rest."""
        first = max(0, room - (len(self.tokens) - len(self.gaps)))  # gaps are those of the last tokens
        head = TokenChunk(
            request_id=self.last.request_id,
            offset=self.offset,
            tokens=tuple(self.tokens[:room]),
            logprobs=None if self.logprobs is None else tuple(self.logprobs[:room]),
            gaps=tuple(self.gaps[:first]),
        )
        self.offset += room
        del self.tokens[:room], self.gaps[:first]
        if self.logprobs is not None:
            del self.logprobs[:room]
        return head

    def whole(self) -> TokenChunk:
        return replace(
            self.last,
            offset=self.offset,
            tokens=tuple(self.tokens),
            logprobs=None if self.logprobs is None else tuple(self.logprobs),
            stats=self.stats,
            sound=self.sound,
            gaps=tuple(self.gaps),
        )


class ChunkMerger:
    """Unsent chunks by request, in order of arrival; chunks of one request grow together.

    Holds at most what the running requests may generate, and per request one object, not one per step.
    """

    def __init__(self) -> None:
        self._unsent: dict[str, _Unsent] = {}

    def __len__(self) -> int:
        return len(self._unsent)

    def __repr__(self) -> str:
        return f"ChunkMerger({len(self)} requests, {sum(len(one.tokens) for one in self._unsent.values())} tokens)"

    def add(self, chunk: TokenChunk, gaps: Sequence[float] = ()) -> None:
        """Append a chunk with its `TokenChunk.gaps`; per request they must come in order and without a hole (the core's
        contract)."""
        unsent = self._unsent.get(chunk.request_id)
        if unsent is None:
            self._unsent[chunk.request_id] = _Unsent(chunk, gaps)
        else:
            unsent.grow(chunk, gaps)

    def take(self, max_tokens: int = MAX_FRAME_TOKENS) -> tuple[TokenChunk, ...]:
        """Remove and return the oldest chunks, together at most `max_tokens`; a chunk that is longer is split."""
        taken: list[TokenChunk] = []
        room = max_tokens
        while self._unsent and room > 0:
            name = next(iter(self._unsent))
            unsent = self._unsent[name]
            chunk = unsent.split(room) if len(unsent.tokens) > room else self._unsent.pop(name).whole()
            taken.append(chunk)
            room -= max(len(chunk.tokens), 1)
        return tuple(taken)
