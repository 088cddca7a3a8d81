"""Samples a second."""

from __future__ import annotations

from typing import Final

RATE: Final = 16_000
"""At which all models here hear: Whisper, Silero, Qwen's."""
