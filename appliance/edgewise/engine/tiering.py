"""KV pages beyond the device, as the scheduler sees them. Implemented by `engine.tiers`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from edgewise.engine.prefix import PageHash


class PageMover(Protocol):
    """Moves whole pages (all layers, keys, values, scales) between the device and host memory, bit for bit."""

    @property
    def page_bytes(self) -> int:
        """Bytes of one page in host memory."""

    def export(self, pages: Sequence[int]) -> list[memoryview]:
        """Copies of the pages' contents, `page_bytes` each; complete when this returns."""

    def restore(self, pages: Sequence[int], contents: Sequence[memoryview]) -> None:
        """Write contents back, into the same pages or others."""


class PageRounder(Protocol):
    """Pages as they are stored, and rounded to fewer bits for a slow link."""

    @property
    def page_bytes(self) -> int:
        """Bytes of a rounded page."""

    def pack(self, contents: Sequence[memoryview]) -> list[bytes]:
        """Stored pages -> rounded ones."""

    def unpack(self, contents: Sequence[bytes]) -> list[bytes]:
        """Rounded pages -> stored ones, which are not those that were packed. Raises `ValueError` for one of another size."""

    def distance(self, one: memoryview, other: memoryview) -> float:
        """Of two stored pages: the largest relative difference of any layer's keys or values; NaN if there is a NaN."""


class PageTiers(Protocol):
    """Named pages in host memory and on disk. Every method returns at once; slow work happens on a thread."""

    def lookup(self, chain: Sequence[PageHash]) -> int:
        """How many names at the start of `chain` can be loaded now without waiting for a disk."""

    def prefetch(self, chain: Sequence[PageHash]) -> None:
        """Start bringing what the disk holds of `chain` into host memory; for requests that wait in the queue."""

    def pending(self, chain: Sequence[PageHash]) -> bool:
        """Whether a prefetch of part of `chain` is under way, so that waiting a little may spare a prefill."""

    def load(self, chain: Sequence[PageHash], pages: Sequence[int]) -> int:
        """Copy the named contents into device pages, in order; returns how many were good (a damaged one ends it)."""

    def settled(self, page: int, name: PageHash) -> None:
        """A named page has lost its last user and stays on the device as cached: it is noted, and copied by a later `tick`."""

    def evicted(self, page: int, name: PageHash) -> None:
        """A named, unused page is about to be overwritten or forgotten: the last chance to keep its contents."""

    def tick(self) -> bool:
        """Called once a step, after it: copies a bounded number of settled pages out. True while more of them wait, so that
        an engine without other work goes on calling (`has_work`)."""

    def close(self) -> None:
        """Write what is still to be written, within a bound, and stop."""


class NoTiers:
    """The `PageTiers` of an engine that keeps pages on the device alone."""

    def lookup(self, *_: object, **__: object) -> int:
        return 0

    def prefetch(self, *_: object, **__: object) -> None:
        return

    def pending(self, *_: object, **__: object) -> bool:
        return False

    def load(self, *_: object, **__: object) -> int:
        return 0

    def settled(self, *_: object, **__: object) -> None:
        return

    def evicted(self, *_: object, **__: object) -> None:
        return

    def tick(self) -> bool:
        return False

    def close(self) -> None:
        return
