"""What the engine process has still to send. Bounded whatever the service does: a service that reads slowly gets fewer, larger
chunks; the step loop is never held up.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import replace
from typing import TypeGuard

from edgewise.engine.encoders.request import EncodeChunk
from edgewise.engine.messages import (
    Chunks,
    EncodeChunks,
    Heartbeat,
    MemoryReply,
    Message,
    PictureChunks,
    Progress,
    StatsReply,
)
from edgewise.engine.pictures.merge import PictureMerger
from edgewise.engine.pictures.request import DiffuseChunk
from edgewise.engine.request import TokenChunk, TokenLogprobs
from edgewise.engine.speech import joined
from edgewise.engine.transport import FrameWriter

MAX_FRAME_TOKENS = 2048
"""Tokens in one frame: with 20 alternatives each, well below the transport's limit."""

_REPORTS = (Heartbeat, Progress, StatsReply, MemoryReply)


class ChunkMerger:
    """Unsent chunks by request, in order of arrival; chunks of one request grow together.

    Holds at most what the running requests may generate, and per request one object, not one per step.
    """

    def __init__(self) -> None:
        self._tokens: dict[str, list[int]] = {}
        self._logprobs: dict[str, list[TokenLogprobs]] = {}
        self._last: dict[str, TokenChunk] = {}
        self._offsets: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._last)

    def __repr__(self) -> str:
        return f"ChunkMerger({len(self)} requests, {sum(map(len, self._tokens.values()))} tokens)"

    def add(self, chunk: TokenChunk) -> None:
        """Append a chunk; per request they must come in order and without gaps (the core's contract)."""
        name = chunk.request_id
        self._offsets.setdefault(name, chunk.offset)
        self._tokens.setdefault(name, []).extend(chunk.tokens)
        if chunk.logprobs is not None:
            self._logprobs.setdefault(name, []).extend(chunk.logprobs)
        before = self._last.get(name)
        if before is not None:
            # Statistics and sound come with some chunks only; merging must not lose them.
            chunk = replace(chunk, stats=chunk.stats or before.stats, sound=joined(before.sound, chunk.sound))
        self._last[name] = chunk

    def take(self, max_tokens: int = MAX_FRAME_TOKENS) -> tuple[TokenChunk, ...]:
        """Remove and return the oldest chunks, together at most `max_tokens`; a chunk that is longer is split."""
        taken: list[TokenChunk] = []
        room = max_tokens
        while self._last and room > 0:
            chunk = self._pop(next(iter(self._last)), room)
            taken.append(chunk)
            room -= max(len(chunk.tokens), 1)
        return tuple(taken)

    def _pop(self, name: str, room: int) -> TokenChunk:
        tokens, offset = self._tokens[name], self._offsets[name]
        logprobs = self._logprobs.get(name)
        last = self._last[name]
        if len(tokens) > room:
            self._tokens[name], self._offsets[name] = tokens[room:], offset + room
            if logprobs is not None:
                self._logprobs[name] = logprobs[room:]
            head = None if logprobs is None else tuple(logprobs[:room])
            return TokenChunk(request_id=name, offset=offset, tokens=tuple(tokens[:room]), logprobs=head)
        for part in (self._tokens, self._offsets, self._last, self._logprobs):
            part.pop(name, None)
        return replace(
            last, offset=offset, tokens=tuple(tokens), logprobs=None if logprobs is None else tuple(logprobs)
        )


class Outbox:
    """Messages of the engine process, sent from whichever thread has one.

    Order: answers (ready, accepted, refused, fault), then reports, of which only the newest of each kind is kept, then chunks.
    """

    def __init__(self, writer: FrameWriter, epoch: int = 0) -> None:
        self.epoch = epoch
        self._writer = writer
        self._answers: deque[Message] = deque()
        self._reports: dict[type[Message], Message] = {}
        self._chunks = ChunkMerger()
        self._pictures = PictureMerger()
        self._encoded: deque[EncodeChunk] = deque()
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"Outbox({len(self._answers)} answers, {len(self._reports)} reports, {self._chunks!r})"

    def put(self, message: Message) -> bool:
        """Send a message or keep it; True if nothing is left unsent. Raises as `FrameWriter.flush`."""
        with self._lock:
            if isinstance(message, _REPORTS):
                self._reports[type(message)] = message
            else:
                self._answers.append(message)
            return self._writer.flush(self._next)

    def put_chunks(self, chunks: Iterable[TokenChunk | DiffuseChunk | EncodeChunk]) -> bool:
        """As `put`, for the chunks of a step."""
        with self._lock:
            chunks = tuple(chunks)
            if self._writer.idle and not self._waits() and _is_frame(chunks):
                self._answers.append(Chunks(epoch=self.epoch, chunks=chunks))  # taken at once: nothing to merge with
                return self._writer.flush(self._next)
            for chunk in chunks:
                if isinstance(chunk, TokenChunk):
                    self._chunks.add(chunk)
                elif isinstance(chunk, EncodeChunk):
                    self._encoded.append(chunk)
                else:
                    self._pictures.add(chunk)
            return self._writer.flush(self._next)

    def flush(self) -> bool:
        """Send what the socket takes; True if nothing is left unsent."""
        with self._lock:
            return self._writer.flush(self._next)

    def flush_until(self, deadline: float) -> bool:
        """Last words: try until a moment of the monotonic clock."""
        while not self.flush():
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.005)
        return True

    def _waits(self) -> bool:
        return bool(self._answers or self._reports or self._chunks or self._pictures or self._encoded)

    def _next(self) -> Message | None:
        if self._answers:
            return self._answers.popleft()
        if self._reports:
            return self._reports.pop(next(iter(self._reports)))
        if self._chunks:
            return Chunks(epoch=self.epoch, chunks=self._chunks.take())
        if self._pictures:
            return PictureChunks(epoch=self.epoch, chunks=(self._pictures.take(),))
        if self._encoded:
            return EncodeChunks(epoch=self.epoch, chunks=(self._encoded.popleft(),))
        return None


def _is_frame(chunks: tuple[TokenChunk | DiffuseChunk | EncodeChunk, ...]) -> TypeGuard[tuple[TokenChunk, ...]]:
    """Whether a step's chunks make one message as they are."""
    return (
        all(type(chunk) is TokenChunk and chunk.sound is None for chunk in chunks)
        and 0 < sum(len(chunk.tokens) for chunk in chunks if isinstance(chunk, TokenChunk)) <= MAX_FRAME_TOKENS
    )
