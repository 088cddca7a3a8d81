"""How much of a recording is taken. Apart from `models.media.audio`, which loads FFmpeg."""

from __future__ import annotations

from typing import Final

MAX_BYTES: Final = 25 << 20
"""Encoded bytes of one recording, as OpenAI has it."""
MAX_SECONDS: Final = 3600.0
