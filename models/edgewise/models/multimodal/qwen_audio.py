"""How Qwen2-Audio and Qwen2.5-Omni count sound: 100 frames a second, four to a placeholder. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from edgewise.models.decoder.fields import Fields
from edgewise.models.whisper.config import HOP

LEAST_FRAMES: Final = 3
"""Fewer make no row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AudioTowerConfig:
    """Attributes:
    positions: Of the tower's frames, after its second convolution.
    window: Half the frames of the spectrogram that are heard together; None where all are (Qwen2-Audio).
    """

    layers: int
    width: int
    heads: int
    inner: int
    mels: int
    positions: int
    window: int | None


def read_audio_tower(fields: Fields, *, windowed: bool) -> AudioTowerConfig:
    """Of an audio_config.

    Raises:
        BadModelFile: A number is missing or impossible.
        UnsupportedModel: Another activation.
    """
    if fields.get("activation_function", "gelu") != "gelu":
        raise fields.unsupported("activation_function", "gelu")
    fields.refuse_unless_neutral({"scale_embedding": (False,)})
    width, heads = fields.size("d_model", 1280), fields.size("encoder_attention_heads", 20)
    if width % heads or width % 2:
        raise fields.bad("encoder_attention_heads", f"a divisor of the width {width}")
    return AudioTowerConfig(
        layers=fields.size("encoder_layers", 32),
        width=width,
        heads=heads,
        inner=fields.size("encoder_ffn_dim", 5120),
        mels=fields.size("num_mel_bins", 128),
        positions=fields.size("max_source_positions", 1500),
        window=fields.size("n_window", 100) if windowed else None,
    )


def feature_frames(samples: int) -> int:
    """Frames of the spectrogram of that many samples at 16 kHz."""
    return max(LEAST_FRAMES, -(-samples // HOP))


def rows_of(frames: int) -> int:
    """Placeholders of that many frames."""
    return ((frames - 1) // 2 - 1) // 2 + 1
