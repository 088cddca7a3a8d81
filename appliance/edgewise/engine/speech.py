"""An answer that is also spoken, as it crosses the process border. Plain frozen data."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

SAMPLE_BYTES: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Speech:
    """That an answer shall be spoken, too.

    Attributes:
        voice: One of `EngineInfo.voices`.
        seed: Decides how it is said; 0 <= seed < 2**64.
    """

    voice: str
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sound:
    """A piece of what is said.

    Attributes:
        start: Samples of the answer before it.
        samples: Signed 16 bits each, one channel, machine order.
        rate: Samples a second.
    """

    start: int
    samples: bytes
    rate: int

    @property
    def count(self) -> int:
        return len(self.samples) // SAMPLE_BYTES

    def after(self, reached: int) -> Sound | None:
        """What of it lies behind the first `reached` samples of the answer; None for nothing."""
        known = max(0, reached - self.start)
        if known >= self.count:
            return None
        return replace(self, start=self.start + known, samples=self.samples[known * SAMPLE_BYTES :])


def joined(first: Sound | None, second: Sound | None) -> Sound | None:
    """Two pieces that follow each other."""
    if first is None or second is None:
        return first or second
    return replace(first, samples=first.samples + second.samples)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeechStats:
    """Facts about how an answer was spoken.

    Attributes:
        voice: Whose.
        first_audio_s: From the request to the first sound; None where there was none.
        speech_s: How long the sound is.
        real_time_factor: Seconds from the first codec token to the last sound, for each second of sound; 0 without any.
        worst_gap_s, gaps: Longest time in which a listener who plays what is there had nothing to play, and how many times.
        chunks: Pieces of sound.
        codec_tokens: That the Talker wrote.
        cut: Whether the Talker reached its limit before it had said all.
    """

    voice: str
    first_audio_s: float | None
    speech_s: float
    real_time_factor: float
    worst_gap_s: float
    gaps: int
    chunks: int
    codec_tokens: int
    cut: bool = False
