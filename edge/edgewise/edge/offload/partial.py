"""What has come of blobs whose link was lost: whoever asks for one again goes on there."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from edgewise.core.errors import DigestMismatch

MOST_BYTES = 256 * 1024**2  # four of the largest blobs that a cloud takes by default
MOST_BLOBS = 64
KEEP_S = 900.0


@dataclass(slots=True)
class _Beginning:
    content: bytearray
    left_at: float = 0.0


class Partial:
    """Beginnings of blobs by their hash. Nobody says when one is given up, so what nobody goes on with for a while is dropped.

    Above the bounds those of which least has come go first, of two alike the one that was left last. What has come farthest
    therefore stays and is finished, however many are read in turns over a link that breaks in each; were the oldest to go first,
    all of them would begin anew for ever.

    Args:
        most_bytes, most_blobs: Kept of all together, besides those that are being read.
        keep_s: Seconds after which one that nobody has gone on with is dropped; readers come back sooner, or not at all.
        now: Monotonic seconds.
    """

    def __init__(
        self,
        most_bytes: int = MOST_BYTES,
        most_blobs: int = MOST_BLOBS,
        keep_s: float = KEEP_S,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._most_bytes = most_bytes
        self._most_blobs = most_blobs
        self._keep_s = keep_s
        self._now = now
        self._left: dict[str, _Beginning] = {}
        self._closed = False
        self._alarm: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"Partial({len(self._left)} blobs, {self.nbytes} bytes)"

    @property
    def nbytes(self) -> int:
        return sum(len(one.content) for one in self._left.values())

    @contextmanager
    def reading(self, sha256: str) -> Iterator[bytearray]:
        """What is there of a blob; what comes is added to it. It is kept where the block is left with an error, but with
        `DigestMismatch`. In the event loop, and one reader of a blob at a time."""
        one = self._left.pop(sha256, None) or _Beginning(bytearray())
        try:
            yield one.content
        except DigestMismatch:
            raise
        except BaseException:  # the link was lost, or the reader cancelled
            if one.content and not self._closed:
                self._leave(sha256, one)
            raise

    def close(self) -> None:
        """Keep none of them, nor what readers that have not ended yet leave."""
        self._closed = True
        self._left.clear()
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    def _leave(self, sha256: str, one: _Beginning) -> None:
        one.left_at = self._now()
        self._left[sha256] = one
        while len(self._left) > self._most_blobs or self.nbytes > self._most_bytes:
            del self._left[min(reversed(self._left), key=lambda name: len(self._left[name].content))]
        if self._alarm is None:
            self._alarm = asyncio.get_running_loop().call_later(self._keep_s, self._expire)

    def _expire(self) -> None:
        self._alarm = None
        now = self._now()
        self._left = {name: one for name, one in self._left.items() if now - one.left_at < self._keep_s}
        if self._left:
            first = min(one.left_at for one in self._left.values())
            self._alarm = asyncio.get_running_loop().call_later(first + self._keep_s - now, self._expire)
