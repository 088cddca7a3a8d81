"""Watts to joules: each reading counts until the next one."""

from __future__ import annotations

_HOLD_S = 10.0
"""A reading that is older than this says nothing of now."""


class Energy:
    """What was drawn since the first reading of power. Never goes back; a gap counts with the watts before it."""

    def __init__(self) -> None:
        self._total = 0.0
        self._at: float | None = None
        self._watts = 0.0

    def __repr__(self) -> str:
        return f"Energy({self._total:.1f} J)"

    def add(self, now: float, watts: float | None) -> None:
        """A reading at `now`, in seconds on a monotonic clock; None, where it is unknown, changes nothing."""
        if watts is None:
            return
        if self._at is not None:
            self._total += self._watts * (now - self._at)
        self._at, self._watts = now, max(0.0, watts)

    def joules(self, now: float) -> float | None:
        """Up to now; None where power is not measured, or was not lately."""
        if self._at is None or now - self._at > _HOLD_S:
            return None
        return self._total + self._watts * (now - self._at)
