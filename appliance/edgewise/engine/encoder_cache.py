"""Rows of media that were encoded, by what they were encoded from, within a bound of bytes."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass

import torch

from edgewise.engine.chunking import MediaKey
from edgewise.models.multimodal.media import Media


@dataclass(slots=True)
class EncoderCacheStats:
    """Fields of `EngineStats` (encoder_cache_*)."""

    items: int = 0
    bytes: int = 0
    limit_bytes: int = 0
    hits: int = 0
    misses: int = 0
    evictions: int = 0


class EncoderCache:
    """Least recently used goes first. `shrink` may be called from another thread.

    Args:
        limit: Bytes of rows that are kept.
        row_bytes: Of one placeholder's row.
    """

    def __init__(self, limit: int, row_bytes: int) -> None:
        self.limit = limit
        self.row_bytes = row_bytes
        self._rows: OrderedDict[MediaKey, torch.Tensor] = OrderedDict()
        self._lock = threading.Lock()
        self._counted = EncoderCacheStats(limit_bytes=limit)

    def __repr__(self) -> str:
        return f"EncoderCache({len(self._rows)} media, {self._nbytes()} of {self.limit} bytes)"

    def size_of(self, medium: Media) -> int:
        """Bytes of a medium's rows."""
        return medium.count * self.row_bytes

    def ready(self, key: MediaKey) -> bool:
        """See `chunking.MediaRows`."""
        return key in self._rows

    def fits(self, medium: Media, keep: Collection[MediaKey]) -> bool:
        """See `chunking.MediaRows`."""
        with self._lock:
            kept = sum(self._rows[key].nbytes for key in keep if key in self._rows)
        return kept + self.size_of(medium) <= self.limit

    def get(self, key: MediaKey) -> torch.Tensor | None:
        """[count, width]; now the most recently used."""
        with self._lock:
            rows = self._rows.get(key)
            if rows is not None:
                self._rows.move_to_end(key)
            return rows

    def make_room(self, size: int, used: frozenset[MediaKey], keep: frozenset[MediaKey] = frozenset()) -> None:
        """Forget what was used longest ago until `size` bytes more are within the limit, what is in `keep` only if need be, what
        is `used` by this step not at all."""
        with self._lock:
            self._forget_until(self.limit - size, used | keep)
            self._forget_until(self.limit - size, used)

    def put(self, key: MediaKey, rows: torch.Tensor) -> None:
        """Keep rows for which there is room."""
        with self._lock:
            self._rows[key] = rows
            self._counted.misses += 1

    def count_hit(self) -> None:
        """A prompt has come to a medium whose rows were there."""
        self._counted.hits += 1

    def shrink(self, excess: int) -> None:
        """Give `excess` bytes back, if so many are held; negative is nothing to give."""
        if excess > 0:
            with self._lock:
                self._forget_until(max(0, self._nbytes() - excess), ())

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._rows.clear()

    def stats(self) -> EncoderCacheStats:
        with self._lock:
            self._counted.items, self._counted.bytes = len(self._rows), self._nbytes()
        return self._counted

    def _forget_until(self, most: int, keep: Collection[MediaKey]) -> None:
        held = self._nbytes()
        for key in [key for key in self._rows if key not in keep]:
            if held <= most:
                return
            held -= self._rows.pop(key).nbytes
            self._counted.evictions += 1

    def _nbytes(self) -> int:
        return sum(rows.nbytes for rows in self._rows.values())
