"""Sound as it arrives and as it leaves: a bounded buffer with positions, and the pace of playing."""

from __future__ import annotations

from typing import Final

from edgewise.models.media.rates import RATE
from edgewise.models.vad.spans import Span

WIDTH: Final = 2
"""Bytes of a sample: signed 16 bits, little-endian, one channel."""


class SoundBuffer:
    """The last samples that were heard, by their position since the session's beginning."""

    def __init__(self) -> None:
        self._start = 0
        self._bytes = bytearray()

    @property
    def start(self) -> int:
        return self._start

    @property
    def end(self) -> int:
        return self._start + len(self._bytes) // WIDTH

    @property
    def seconds(self) -> float:
        return len(self._bytes) / WIDTH / RATE

    def append(self, samples: bytes) -> None:
        self._bytes += samples

    def take(self, span: Span) -> bytes:
        """The samples of a span, as far as they are kept."""
        first, last = span.start - self._start, span.end - self._start
        return bytes(self._bytes[max(0, first) * WIDTH : max(0, last) * WIDTH])

    def forget_before(self, position: int) -> None:
        """Samples before this one are needed no more."""
        count = min(position, self.end) - self._start
        if count > 0:
            del self._bytes[: count * WIDTH]
            self._start += count


class Pace:
    """What a listener has heard of what was sent, who plays it from its arrival without a pause of their own.

    Times in seconds of one monotonic clock.

    Args:
        lead_s: How far ahead of what is heard sound may be sent.
    """

    def __init__(self, lead_s: float) -> None:
        self._lead_s = lead_s
        self._sent_s = 0.0
        self._end = 0.0
        self.worst_gap_s = 0.0

    @property
    def sent_s(self) -> float:
        """Duration of all that was sent."""
        return self._sent_s

    def wait_s(self, now: float) -> float:
        """How long to wait before more is sent."""
        return max(0.0, self._end - now - self._lead_s) if self._sent_s else 0.0

    def sent(self, seconds: float, now: float) -> None:
        """`seconds` of sound have left. What comes after the end of all before it leaves a gap."""
        if self._sent_s and now > self._end:
            self.worst_gap_s = max(self.worst_gap_s, now - self._end)
        self._end = max(self._end, now) + seconds if self._sent_s else now + seconds
        self._sent_s += seconds

    def played_s(self, now: float) -> float:
        """Duration of what has been heard by now."""
        return self._sent_s - min(self._sent_s, max(0.0, self._end - now)) if self._sent_s else 0.0

    def playing(self, now: float) -> bool:
        """Whether some of it is still to be heard."""
        return self._sent_s > 0 and now < self._end
