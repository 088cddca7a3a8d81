"""How far the device has to hold back, from what is left to the nearest limit. Pure: times and readings are handed in."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from edgewise.edge.hardware.protocol import Sensed


class Level(IntEnum):
    NORMAL = 0
    WARM = 1
    HOT = 2
    CRITICAL = 3

    @property
    def word(self) -> str:
        return self.name.lower()


LEFT_C = {Level.WARM: 6.0, Level.HOT: 3.0, Level.CRITICAL: 0.0}
"""Degrees left to the limit at which a level begins."""
EASE_C = 2.0
"""So many more must be left for it to end."""
DWELL_S = 20.0
"""Seconds for which a lower level must have been enough before the next lower one is taken."""
UNKNOWN_S = 60.0
"""Seconds after the last known temperature in which the level stays."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one reading asks for, and why."""

    level: Level
    reason: str


class Levels:
    """Up at once, as far as a reading asks; down one level at a time, each after `DWELL_S` in which less was enough.

    Args:
        max_temperature_c: The configured limit. The hardware's own counts where it is nearer.
    """

    def __init__(self, max_temperature_c: float) -> None:
        self._limit_c = max_temperature_c
        self._level = Level.NORMAL
        self._enough_since: float | None = None
        self._known_at: float | None = None
        self.reason = "nothing was measured yet"

    def __repr__(self) -> str:
        return f"Levels({self.level.word}: {self.reason})"

    @property
    def level(self) -> Level:
        return self._level

    def observe(self, sensed: Sensed, now: float, *, saving: str | None = None) -> bool:
        """Take a reading; whether the level has changed.

        Args:
            now: Seconds on a monotonic clock.
            saving: Why energy is to be saved, if it is.
        """
        if sensed.temperature_c is not None or sensed.margin_c is not None:
            self._known_at = now
        asked = self._asked(sensed, saving, 0.0)
        if asked.level < self._level and self._unknown(now):
            return False  # nobody knows whether it has cooled down
        self.reason = asked.reason
        if asked.level >= self._level:
            changed = asked.level > self._level
            self._level, self._enough_since = asked.level, None
            return changed
        return self._down(sensed, now, saving)

    def _down(self, sensed: Sensed, now: float, saving: str | None) -> bool:
        easier = self._asked(sensed, saving, EASE_C)
        if easier.level >= self._level:
            self._enough_since = None
            return False
        if self._enough_since is None:
            self._enough_since = now
        if now - self._enough_since < DWELL_S:
            return False
        self._level, self._enough_since = Level(self._level - 1), now
        return True

    def _unknown(self, now: float) -> bool:
        """No temperature is known now, and one was a short time ago."""
        return self._known_at is not None and 0 < now - self._known_at <= UNKNOWN_S

    def _asked(self, sensed: Sensed, saving: str | None, ease_c: float) -> Verdict:
        """What a reading asks for; with `ease_c`, what it would take to stay there."""
        verdict = self._by_heat(sensed, ease_c)
        if sensed.throttled and verdict.level < Level.HOT:
            verdict = Verdict(Level.HOT, f"the hardware slows itself down ({', '.join(sensed.reasons) or 'it says'})")
        if saving is not None and verdict.level < Level.WARM:
            verdict = Verdict(Level.WARM, saving)
        return verdict

    def _by_heat(self, sensed: Sensed, ease_c: float) -> Verdict:
        lefts = []
        if sensed.temperature_c is not None:
            left = self._limit_c - sensed.temperature_c
            lefts.append((left, f"{sensed.temperature_c:.1f} C, {_left(left)} the limit of {self._limit_c:g} C"))
        if sensed.margin_c is not None:
            lefts.append((sensed.margin_c, f"{_left(sensed.margin_c)} the point where the hardware slows itself down"))
        if not lefts:
            return Verdict(Level.NORMAL, "no temperature is known")
        left, reason = min(lefts)
        level = max((one for one, begins in LEFT_C.items() if left <= begins + ease_c), default=Level.NORMAL)
        return Verdict(level, reason)


def _left(degrees: float) -> str:
    return f"{degrees:.1f} below" if degrees >= 0 else f"{-degrees:.1f} above"
