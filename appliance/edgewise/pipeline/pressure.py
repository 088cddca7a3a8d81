"""What is given up, in which order, when the device has too little of something (docs/pressure.md).

Sources tell how pressed the device is: its heat, its memory, its queue. The worst of them counts. What a caller left open steps
down, one thing more at each level: frames of film first, then what is seen of pictures, then the steps in which pictures are
drawn. What a caller asked for by number is never changed. At every level above none, pictures and film also wait behind chats.
The receipt says what was given up and why.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Final

from edgewise.core.modality import Modality
from edgewise.core.priority import Priority

MOST: Final = 3
_KEPT_S: Final = 1.0
"""A reading of the sources is used for so long."""


@dataclass(frozen=True, slots=True, order=True)
class Reading:
    """How pressed a source is, 0 (not at all) to 3, and one clause that says why."""

    level: int = 0
    reason: str = ""


Source = Callable[[], Reading]


@dataclass(frozen=True, slots=True)
class Quality:
    """What is left of what would be done without pressure, as shares."""

    frames: float = 1.0
    pixels: float = 1.0
    steps: float = 1.0


QUALITY: Final = (
    Quality(),
    Quality(frames=0.5),
    Quality(frames=0.25, pixels=0.5),
    Quality(frames=0.25, pixels=0.25, steps=0.6),
)
"""By level."""

_LOWEST: Final = {Modality.IMAGE: Priority.BACKGROUND, Modality.VIDEO: Priority.BULK}
"""The most urgent class of a request that names none, while the device is pressed."""


class Pressure:
    """Asked by whoever begins a request; used from the event loop.

    Args:
        now: A monotonic clock in seconds.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._sources: dict[str, Source] = {}
        self._told: dict[str, Reading] = {}
        self._read_at = float("-inf")
        self._reading = Reading()

    def __repr__(self) -> str:
        return f"Pressure({self.reading!r})"

    def watch(self, name: str, source: Source) -> None:
        """Ask `source`, which must be quick, whenever somebody wants to know."""
        self._sources[name] = source
        self._read_at = float("-inf")

    def tell(self, name: str, level: int, reason: str) -> None:
        """What a source that knows by itself has found; it counts until it says something else."""
        self._told[name] = Reading(min(max(level, 0), MOST), reason)
        self._read_at = float("-inf")

    @property
    def reading(self) -> Reading:
        """The worst of all sources."""
        if self._now() - self._read_at >= _KEPT_S:
            found = [*self._told.values(), *(source() for source in self._sources.values())]
            self._reading = max(found, key=lambda one: one.level, default=Reading())
            self._read_at = self._now()
        return self._reading

    @property
    def quality(self) -> Quality:
        return QUALITY[self.reading.level]

    def priority(self, modality: Modality, priority: Priority) -> Priority:
        """The class of a request whose caller named none."""
        return priority if self.reading.level == 0 else max(priority, _LOWEST.get(modality, priority))

    def show(self) -> dict[str, Any]:
        """Level and reason, for /readyz."""
        return asdict(self.reading)

    def lowered(self, what: str, usual: float, now: float) -> str:
        """The sentence for the receipt: `what` is "frames of film", say; the numbers are what it would have been, and is."""
        return f"The device is pressed ({self.reading.reason}): {what} stepped down from {usual:g} to {now:g}."


def share_reading(used: float, what: str) -> Reading:
    """Of something that is used up to a share of 0 to 1: pressed from three quarters on."""
    level = sum(used >= mark for mark in (0.75, 0.875, 0.95))
    return Reading(level, f"{used:.0%} of {what} is taken") if level else Reading()


def memory_reading(available: int, total: int) -> Reading:
    """Of the machine's memory: pressed when less than a tenth is left."""
    left = available / max(total, 1)
    level = sum(left < mark for mark in (0.1, 0.05, 0.025))
    return Reading(level, f"{left:.1%} of the memory is left") if level else Reading()
