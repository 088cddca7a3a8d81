"""How long work on models (pull, import, verify) reports how far it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

Phase = Literal["download", "unpack", "copy", "verify", "resume", "convert"]


@dataclass(frozen=True, slots=True)
class Progress:
    """One report.

    Attributes:
        phase: What is being done. "resume" re-reads what an earlier, interrupted pull left.
        item: Which file or package.
        done: Bytes done of this item; within one (phase, item) it goes back only when a transfer must begin again.
        total: Bytes in all, or None when the other side does not say.
    """

    phase: Phase
    item: str
    done: int
    total: int | None


ProgressSink: TypeAlias = Callable[[Progress], None]


def no_progress(report: Progress) -> None:
    """A sink for callers that show nothing."""
