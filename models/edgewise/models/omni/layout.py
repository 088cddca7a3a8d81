"""How Qwen2.5-Omni takes pictures, film and sound. Torch-free."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from edgewise.core.errors import InvalidRequest
from edgewise.models.decoder.fields import Fields
from edgewise.models.files import ModelFiles
from edgewise.models.media.rates import RATE
from edgewise.models.multimodal import qwen
from edgewise.models.multimodal.layout import Fitted, medium
from edgewise.models.multimodal.media import MediaKind
from edgewise.models.multimodal.qwen_audio import feature_frames, rows_of
from edgewise.models.omni.config import placeholders, section

_MARKERS: Final[Mapping[MediaKind, str]] = {"image": "<|IMAGE|>", "video": "<|VIDEO|>", "audio": "<|AUDIO|>"}
_MOST_SECONDS: Final = 600
_FLOATS: Final = 4
TEXT_DEFAULTS: Final[Mapping[str, Mapping[str, Any]]] = {
    "qwen2": {"rms_norm_eps": 1e-6, "rope_theta": 1_000_000.0, "tie_word_embeddings": False}
}


@dataclass(frozen=True, slots=True, kw_only=True)
class OmniLayout(qwen.QwenLayout):
    """Pictures and film as Qwen2.5-VL takes them, with 25 positions to the second. A film's sound is not heard with it."""

    @property
    def markers(self) -> Mapping[MediaKind, str]:
        return _MARKERS

    def sound(self, samples: NDArray[np.float32], param: str) -> Fitted:
        """Fit a recording.

        Args:
            samples: [n] at 16 kHz, one channel.
            param: The field that it came in, for messages.

        Raises:
            InvalidRequest: It is longer than ten minutes, or empty.
        """
        if not 0 < len(samples) <= _MOST_SECONDS * RATE:
            raise InvalidRequest(
                f"'{param}' lasts {len(samples) / RATE:.3g} s: this model hears up to {_MOST_SECONDS} s. Cut it.",
                param=param,
            )
        count = rows_of(feature_frames(len(samples)))
        return Fitted(_MARKERS["audio"] * count, (medium("audio", samples.astype(np.float32), count),), (0, 0))


def read_layout(config: Fields, files: ModelFiles) -> OmniLayout:
    """Raises:
    BadModelFile: A number is missing or impossible.
    """
    thinker = section(config, "thinker_config")
    seen = qwen.read_layout(thinker, files)
    return OmniLayout(
        placeholders=placeholders(thinker),
        side=seen.side,
        depth=seen.depth,
        picture_bounds=seen.picture_bounds,
        film_bounds=seen.film_bounds,
        per_second=float(thinker.size("position_id_per_seconds", 25)),
    )


def workspace(config: Fields) -> int:
    """Bytes that encoding one medium takes at most: a picture, or ten minutes of sound with its spectrogram."""
    thinker = section(config, "thinker_config")
    audio = section(thinker, "audio_config")
    frames = 100 * _MOST_SECONDS
    heard = _FLOATS * frames * (2 * 201 + 2 * audio.size("num_mel_bins", 128) + audio.size("d_model", 1280))
    return max(qwen.workspace(thinker), heard)
