"""Playback as the engine reckons it: whoever gets sound plays it from the first chunk on, without waiting for more. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Player:
    """Times in seconds, on one clock.

    Attributes:
        asked: When the answer was asked for.
        first: When its first sound was there; None until then.
        played: Seconds of sound given so far.
        worst_gap: Longest time in which there was nothing to play between two chunks.
        gaps: How many times there was nothing.
    """

    asked: float
    first: float | None = None
    played: float = 0.0
    worst_gap: float = 0.0
    gaps: int = 0
    _dry: float = 0.0

    def give(self, seconds: float, now: float) -> None:
        """A chunk of sound arrives."""
        if seconds <= 0:
            return
        if self.first is None:
            self.first = self._dry = now
        gap = now - self._dry
        if gap > 0:
            self.worst_gap, self.gaps = max(self.worst_gap, gap), self.gaps + 1
        self._dry = max(self._dry, now) + seconds
        self.played += seconds

    def buffer(self, now: float) -> float | None:
        """Seconds until there is nothing left to play; below 0 within a gap. None before the first sound."""
        return None if self.first is None else self._dry - now

    @property
    def first_audio_s(self) -> float | None:
        """From the question to the first sound."""
        return None if self.first is None else self.first - self.asked
