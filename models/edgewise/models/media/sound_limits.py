"""How much of a recording is taken. Apart from `models.media.audio`, which loads FFmpeg."""

from __future__ import annotations

from typing import Final

from edgewise.models.media.rates import RATE

MAX_BYTES: Final = 25 << 20
"""Encoded bytes of one recording, as OpenAI has it."""
MAX_SECONDS: Final = 3600.0
_SAMPLE: Final = 4
_COPIES: Final = 2
"""Of samples, on their way from one process to the other."""


def sound_bytes(seconds: float, rate: int = RATE) -> int:
    """What so many seconds of sound take in memory while they are decoded; half of it afterwards."""
    return _COPIES * _SAMPLE * int(seconds * rate)
