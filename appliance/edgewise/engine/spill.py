"""Host memory for the pages of preempted sequences, within a bound, and what moving a page costs.

Whether a preempted sequence's pages are worth keeping is decided by measured cost: moving them out and back against computing
their tokens again. An estimate that nobody has tested for a while fades, so that one slow move (a busy machine, memory touched
for the first time) does not decide for ever.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from edgewise.engine.tiering import PageMover

_SMOOTHING = 0.2
_FADING = 0.9  # of the estimate, for each decision against moving


@dataclass(frozen=True, slots=True)
class SpillStats:
    """Pages moved out and back since the start, and bytes of host memory that are promised now."""

    exported: int
    restored: int
    reserved_bytes: int
    limit_bytes: int


class SpillSpace:
    """Room for spilled pages.

    Args:
        mover: Moves pages; None where nothing can be spilled.
        limit_bytes: Bound of what is kept, which the ledger has booked.
        now: Monotonic seconds.
    """

    def __init__(
        self, mover: PageMover | None = None, limit_bytes: int = 0, *, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._mover = mover
        self._limit = limit_bytes
        self._now = now
        self._reserved = 0
        self._exported = 0
        self._restored = 0
        self._export_s: float | None = None
        self._restore_s: float | None = None

    def __repr__(self) -> str:
        return f"SpillSpace({self._reserved} of {self._limit} bytes, {self.page_s:.2g} s a page)"

    @property
    def page_s(self) -> float:
        """Estimated seconds to move one page out and back; 0 before one was moved, so that it is tried."""
        return (self._export_s or 0.0) + (self._restore_s or 0.0)

    def reserve(self, pages: int, recompute_s: float | None) -> bool:
        """Promise room for `pages` if there is some and moving them is cheaper than `recompute_s` seconds (None: unknown)."""
        if self._mover is None or pages == 0 or self._reserved + pages * self._mover.page_bytes > self._limit:
            return False
        if recompute_s is not None and pages * self.page_s > recompute_s:
            self._export_s = _faded(self._export_s)
            self._restore_s = _faded(self._restore_s)
            return False
        self._reserved += pages * self._mover.page_bytes
        return True

    def free(self, pages: int) -> None:
        """Give a promise back."""
        assert self._mover is not None
        self._reserved -= pages * self._mover.page_bytes

    def export(self, pages: Sequence[int]) -> list[memoryview]:
        """Contents of the pages, copied."""
        assert self._mover is not None
        began = self._now()
        contents = self._mover.export(pages)
        self._export_s = _blend(self._export_s, (self._now() - began) / len(pages))
        self._exported += len(pages)
        return contents

    def restore(self, pages: Sequence[int], contents: Sequence[memoryview]) -> None:
        assert self._mover is not None
        began = self._now()
        self._mover.restore(pages, contents)
        self._restore_s = _blend(self._restore_s, (self._now() - began) / len(pages))
        self._restored += len(pages)

    def stats(self) -> SpillStats:
        return SpillStats(
            exported=self._exported, restored=self._restored, reserved_bytes=self._reserved, limit_bytes=self._limit
        )


def _blend(old: float | None, new: float) -> float:
    return new if old is None else old + _SMOOTHING * (new - old)


def _faded(old: float | None) -> float | None:
    return None if old is None else old * _FADING
