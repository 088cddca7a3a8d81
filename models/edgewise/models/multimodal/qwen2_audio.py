"""Qwen2-Audio (Chu et al. 2024): how it takes recordings. The tower is `towers.audio`. Torch-free."""

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
from edgewise.models.multimodal.layout import Fitted, Pixels, medium
from edgewise.models.multimodal.media import MediaKind
from edgewise.models.multimodal.qwen_audio import AudioTowerConfig, feature_frames, read_audio_tower, rows_of
from edgewise.models.whisper.config import HOP

_MARKERS: Final[Mapping[MediaKind, str]] = {"audio": "<|AUDIO|>"}
_FLOATS: Final = 4

TEXT_DEFAULTS: Final[Mapping[str, Mapping[str, Any]]] = {
    "qwen2": {
        "vocab_size": 151_936,
        "hidden_size": 4096,
        "intermediate_size": 22_016,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "max_position_embeddings": 32_768,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10_000.0,
    }
}
"""What transformers takes for keys that text_config lacks: the published model leaves most of them out."""


@dataclass(frozen=True, slots=True)
class Qwen2AudioLayout:
    """Attributes:
    placeholder: Id of <|AUDIO|>.
    most: Samples that are heard at once.
    """

    placeholder: int
    most: int

    @property
    def markers(self) -> Mapping[MediaKind, str]:
        return _MARKERS

    @property
    def placeholders(self) -> Mapping[MediaKind, int]:
        return {"audio": self.placeholder}

    @property
    def most_pixels(self) -> int:
        return 0

    def picture(self, pixels: Pixels, param: str, *, max_pixels: int | None = None) -> Fitted:
        """It has no eyes."""
        del pixels, max_pixels
        raise InvalidRequest(f"'{param}' is a picture, and this model takes recordings only.", param=param)

    def sound(self, samples: NDArray[np.float32], param: str) -> Fitted:
        """See `SoundLayout`."""
        count = samples.shape[0]
        if count > self.most:
            raise InvalidRequest(
                f"'{param}' lasts {count / RATE:.1f} s: this model hears at most {self.most / RATE:g} s at once. Send it in "
                "parts, or transcribe it.",
                param=param,
            )
        rows = rows_of(feature_frames(count))
        return Fitted(_MARKERS["audio"] * rows, (medium("audio", samples, rows),), (0, 0))


def read_layout(config: Fields, files: ModelFiles) -> Qwen2AudioLayout:
    """Raises:
    BadModelFile: A number is missing or impossible.
    """
    del files
    tower = audio_tower(config)
    return Qwen2AudioLayout(config.size("audio_token_index", config.size("audio_token_id", 151_646)), _samples(tower))


def audio_tower(config: Fields) -> AudioTowerConfig:
    """The tower's part of the configuration. Raises as `read_audio_tower`."""
    own: Any = config.get("audio_config", {})
    if not isinstance(own, Mapping):
        raise config.bad("audio_config", "an object")
    return read_audio_tower(Fields(own, f"{config.where}: 'audio_config'"), windowed=False)


def workspace(config: Fields) -> int:
    """Bytes of encoding one recording (`Family.workspace`)."""
    tower = audio_tower(config)
    rows = tower.positions * (10 * tower.width + 2 * tower.inner) + tower.heads * tower.positions**2
    return (rows + 4 * _samples(tower)) * _FLOATS


def _samples(tower: AudioTowerConfig) -> int:
    return 2 * tower.positions * HOP
