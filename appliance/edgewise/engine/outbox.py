"""What the engine process has still to send. Bounded whatever the service does: a service that reads slowly gets fewer, larger
chunks; the step loop is never held up. A quick engine sends the tokens of several steps together.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable

from edgewise.engine.encoders.request import EncodeChunk
from edgewise.engine.merging import ChunkMerger
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
from edgewise.engine.request import TokenChunk
from edgewise.engine.transport import FrameWriter

WHOLE_S = 1.0
"""How long tokens of an answer that nobody reads before its end may wait: what a crash of the engine makes it compute again."""

SHARERS = 8
LONGEST = 3.0
"""Each answer costs the service and a client an event, so of several at once tokens wait longer: for another `interval_s` with
every `SHARERS` further answers, for `LONGEST` times as long at most."""

_REPORTS = (Heartbeat, Progress, StatsReply, MemoryReply)


class Outbox:
    """Messages of the engine process, sent from whichever thread has one.

    Order: answers (ready, accepted, refused, fault), then reports, of which only the newest of each kind is kept, then chunks.

    Chunks of tokens wait for those of the next steps while no step of the length of the last one would make the oldest wait
    longer than `interval_s`, or somewhat longer where many answers share the steps: a message costs the service a wake-up, which
    a quick engine on the same cores pays for. First tokens and ends never wait, and what waits goes with them.

    Attributes:
        epoch: Of this life.
        interval_s: 0 sends each step's tokens at once.
        whole: Requests whose answers nobody reads before their ends; their tokens wait for up to `WHOLE_S`.
    """

    def __init__(
        self, writer: FrameWriter, epoch: int = 0, *, interval_s: float = 0.0, now: Callable[[], float] = time.monotonic
    ) -> None:
        self.epoch = epoch
        self.interval_s = interval_s
        self.whole: set[str] = set()
        self._writer = writer
        self._now = now
        self._answers: deque[Message] = deque()
        self._reports: dict[type[Message], Message] = {}
        self._chunks = ChunkMerger()
        self._pictures = PictureMerger()
        self._encoded: deque[EncodeChunk] = deque()
        self._lock = threading.Lock()
        self._made: dict[str, float] = {}  # when the newest token of each request was
        self._read = False  # whether somebody waits for one of the tokens that wait here
        self._stepped = self._sent = now()

    def __repr__(self) -> str:
        return f"Outbox({len(self._answers)} answers, {len(self._reports)} reports, {self._chunks!r})"

    def put(self, message: Message) -> bool:
        """Send a message or keep it; True if nothing is left that the socket did not take. Raises as `FrameWriter.flush`."""
        with self._lock:
            if isinstance(message, _REPORTS):
                self._reports[type(message)] = message
            else:
                self._answers.append(message)
            return self._writer.flush(self._next)

    def put_chunks(self, chunks: Iterable[TokenChunk | DiffuseChunk | EncodeChunk], *, more: bool = False) -> bool:
        """As `put`, for the chunks of a step; with `more` another step follows at once, for which they may wait."""
        with self._lock:
            now = self._now()
            step_s, self._stepped = now - self._stepped, now
            urgent = not more
            for chunk in chunks:
                if isinstance(chunk, TokenChunk):
                    urgent |= self._add(chunk, now)
                elif isinstance(chunk, EncodeChunk):
                    urgent = True
                    self._encoded.append(chunk)
                else:
                    urgent = True
                    self._pictures.add(chunk)
            if urgent or not self._writer.idle or now + step_s - self._sent > self._patience_s:
                return self._writer.flush(self._next)
            return True

    def _add(self, chunk: TokenChunk, now: float) -> bool:
        """Keep a chunk with the times between its tokens; whether it must be sent now."""
        name, count = chunk.request_id, len(chunk.tokens)
        gaps: tuple[float, ...] = ()
        first = False
        if count:
            before = self._made.get(name)
            if before is None:
                first = True
            else:
                gaps = ((now - before) / count,) * count
            self._made[name] = now
        self._chunks.add(chunk, gaps)
        if chunk.finish is not None:
            self._made.pop(name, None)
            self.whole.discard(name)
            return True
        self._read |= name not in self.whole
        return first or chunk.sound is not None

    @property
    def _patience_s(self) -> float:
        if not self._read:
            return WHOLE_S
        return self.interval_s * min(LONGEST, 1.0 + (len(self._chunks) - 1) / SHARERS)

    def flush(self) -> bool:
        """Send what the socket takes, also what may wait; True if nothing is left unsent."""
        with self._lock:
            return self._writer.flush(self._next)

    def flush_until(self, deadline: float) -> bool:
        """Last words: try until a moment of the monotonic clock."""
        while not self.flush():
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.005)
        return True

    def _next(self) -> Message | None:
        if self._answers:
            return self._answers.popleft()
        if self._reports:
            return self._reports.pop(next(iter(self._reports)))
        if self._chunks:
            self._sent, self._read = self._now(), False
            return Chunks(epoch=self.epoch, chunks=self._chunks.take())
        if self._pictures:
            return PictureChunks(epoch=self.epoch, chunks=(self._pictures.take(),))
        if self._encoded:
            return EncodeChunks(epoch=self.epoch, chunks=(self._encoded.popleft(),))
        return None
