"""Gemma 3's eyes: SigLIP, whose patches are averaged in squares, normed and projected."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch.nn.functional import avg_pool2d

from edgewise.core.errors import BadModelFile
from edgewise.models.decoder.fields import Fields
from edgewise.models.files import ModelFiles
from edgewise.models.multimodal.gemma3 import PICTURE_TOKENS
from edgewise.models.multimodal.media import Media
from edgewise.models.multimodal.pixels import HALF, Colours, colours, picture_options
from edgewise.models.multimodal.protocol import SlicedEncoder, Slices
from edgewise.models.multimodal.towers.clip import ClipConfig, ClipTower, read_clip_config
from edgewise.models.multimodal.towers.colours import normalised
from edgewise.models.multimodal.towers.weights import Part, RMSNorm
from edgewise.models.weights.reader import WeightReader

_TOWER: Final = tuple(f"{at}vision_tower.{inner}" for at in ("", "model.") for inner in ("vision_model.", ""))
_PROJECTOR: Final = ("multi_modal_projector.", "model.multi_modal_projector.")
_DEFAULTS: Final = {
    "model_type": "siglip_vision_model",
    "num_hidden_layers": 27,
    "hidden_size": 1152,
    "num_attention_heads": 16,
    "intermediate_size": 4304,
    "image_size": 896,
    "patch_size": 14,
}


@dataclass(frozen=True, slots=True)
class Gemma3TowerConfig:
    """Attributes:
    patches: Of a row of a picture.
    across: Rows and columns of a picture's placeholders.
    """

    siglip: ClipConfig
    patches: int
    across: int


def read_tower_config(config: Fields) -> Gemma3TowerConfig:
    """Of the whole model's configuration. Raises `BadModelFile`, `UnsupportedModel`."""
    siglip = read_clip_config(Fields({**_DEFAULTS, **config.get("vision_config", {})}, config.where))
    count = config.size("mm_tokens_per_image", PICTURE_TOKENS)
    patches, across = siglip.side // siglip.patch, round(count**0.5)
    if across**2 != count or patches % across:
        raise BadModelFile(f"{config.where}: {count} tokens cannot stand for {patches} x {patches} patches.")
    return Gemma3TowerConfig(siglip, patches, across)


class Gemma3Tower(SlicedEncoder):
    """A `MediaEncoder`."""

    def __init__(
        self, config: Gemma3TowerConfig, tower: Part, projector: Part, shades: Colours, *, outputs: int
    ) -> None:
        self._config = config
        self._colours = shades
        self._siglip = ClipTower(config.siglip, tower)
        width, eps = config.siglip.width, config.siglip.eps
        self._last_norm = tower.layer_norm("post_layernorm", width, eps)
        self._norm = RMSNorm(projector.take("mm_soft_emb_norm.weight", width), eps, offset=1.0)
        self._project = projector.take("mm_input_projection_weight", width, outputs)

    def slices(self, item: Media) -> Slices:
        """See `SlicedEncoder`."""
        patches, across = self._config.patches, self._config.across
        last = yield from self._siglip.last(normalised(item, self._colours, self._project)[0])
        seen = self._last_norm(last)
        square = seen.T.reshape(1, -1, patches, patches)
        pooled = avg_pool2d(square, patches // across)[0].flatten(1).T
        return self._norm(pooled) @ self._project


def load_encoder(
    config: Fields,
    files: ModelFiles,
    reader: WeightReader,
    *,
    width: int,
    device: torch.device,
    dtype: torch.dtype,
) -> Gemma3Tower:
    """Raises `BadModelFile`: a tensor is missing or of another shape; `UnsupportedModel`."""
    tower, projector = (Part(reader, at, device=device, dtype=dtype, name=files.name) for at in (_TOWER, _PROJECTOR))
    shades = colours(picture_options(files), HALF)
    return Gemma3Tower(read_tower_config(config), tower, projector, shades, outputs=width)
