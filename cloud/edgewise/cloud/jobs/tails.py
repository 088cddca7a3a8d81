"""Readers of running streams: the latest chunks from memory, at once; older ones from the table."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from edgewise.cloud.jobs.statements import Entry

_KEPT = 256  # chunks of a stream in memory


@dataclass(slots=True)
class Tail:
    """The end of one job's log, as it grows while somebody reads it.

    Attributes:
        entries: The last committed chunks, without gaps; empty until the first one after the tail was opened.
        version: Counts changes of the job's state.
        turn: Set, and replaced, whenever anything changed.
    """

    readers: int = 0
    entries: deque[Entry] = field(default_factory=lambda: deque(maxlen=_KEPT))
    version: int = 0
    turn: asyncio.Event = field(default_factory=asyncio.Event)

    def after(self, seq: int) -> list[Entry] | None:
        """What follows number `seq` for a reader that had everything when it last read the table; None: read it again."""
        if self.entries and self.entries[0][0] > seq + 1:
            return None
        return [entry for entry in self.entries if entry[0] > seq]

    def wake(self) -> None:
        self.turn.set()
        self.turn = asyncio.Event()


class Tails:
    """All in the event loop."""

    def __init__(self) -> None:
        self._tails: dict[str, Tail] = {}

    def open(self, job: str) -> Tail:
        tail = self._tails.setdefault(job, Tail())
        tail.readers += 1
        return tail

    def close(self, job: str) -> None:
        tail = self._tails[job]
        tail.readers -= 1
        if tail.readers == 0:
            del self._tails[job]

    def written(self, job: str, entries: Sequence[Entry]) -> None:
        """Chunks were committed."""
        tail = self._tails.get(job)
        if tail is not None:
            tail.entries.extend(entries)
            tail.wake()

    def changed(self, job: str) -> None:
        """The job's state may have changed: its readers look again."""
        tail = self._tails.get(job)
        if tail is not None:
            tail.version += 1
            tail.wake()
