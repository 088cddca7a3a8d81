"""The eyes of Idefics3 and SmolVLM: SigLIP, whose patches are joined in squares (pixel shuffle) and projected."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch

from edgewise.core.errors import BadModelFile
from edgewise.models.decoder.fields import Fields
from edgewise.models.files import ModelFiles
from edgewise.models.multimodal.media import Media
from edgewise.models.multimodal.pixels import HALF, Colours, colours, picture_options
from edgewise.models.multimodal.protocol import SlicedEncoder, Slices
from edgewise.models.multimodal.towers.clip import ClipConfig, ClipTower, read_clip_config
from edgewise.models.multimodal.towers.colours import normalised
from edgewise.models.multimodal.towers.weights import Part
from edgewise.models.weights.reader import WeightReader

_TOWER: Final = ("model.vision_model.", "vision_model.")
_CONNECTOR: Final = ("model.connector.", "connector.")
_DEFAULTS: Final = {
    "num_hidden_layers": 12,
    "hidden_size": 1152,
    "num_attention_heads": 16,
    "intermediate_size": 3072,
    "image_size": 224,
    "patch_size": 32,
}


@dataclass(frozen=True, slots=True)
class Idefics3TowerConfig:
    """Attributes:
    patches: Of a row of the picture that positions were learned for.
    scale: So many rows and columns of patches become one position.
    """

    siglip: ClipConfig
    patches: int
    scale: int


def read_tower_config(config: Fields) -> Idefics3TowerConfig:
    """Of the whole model's configuration. Raises `BadModelFile`, `UnsupportedModel`."""
    vision = {**_DEFAULTS, **config.get("vision_config", {}), "model_type": "siglip_vision_model"}
    siglip = read_clip_config(Fields(vision, config.where))
    patches, scale = siglip.side // siglip.patch, config.size("scale_factor", 2)
    if patches % scale:
        raise BadModelFile(f"{config.where}: {patches} patches a row cannot be joined by {scale}.")
    return Idefics3TowerConfig(siglip, patches, scale)


class Idefics3Tower(SlicedEncoder):
    """A `MediaEncoder`; an item is a tile."""

    def __init__(
        self, config: Idefics3TowerConfig, tower: Part, connector: Part, shades: Colours, *, outputs: int
    ) -> None:
        self._config = config
        self._colours = shades
        self._siglip = ClipTower(config.siglip, tower)
        width = config.siglip.width
        self._last_norm = tower.layer_norm("post_layernorm", width, config.siglip.eps)
        self._project = connector.linear("modality_projection.proj", width * config.scale**2, outputs, bias=False)

    def slices(self, item: Media) -> Slices:
        """See `SlicedEncoder`."""
        config = self._config
        pixels = normalised(item, self._colours, self._project.weight)[0]
        across = pixels.shape[0] // config.siglip.patch
        row = _places(across, config.patches, pixels.device)
        places = (row[:, None] * config.patches + row).flatten()
        last = yield from self._siglip.last(pixels, places)
        seen = self._last_norm(last)
        scale = config.scale
        joined = seen.view(across // scale, scale, across // scale, scale, -1).transpose(1, 2)
        return self._project(joined.reshape((across // scale) ** 2, -1))


def _places(count: int, learned: int, device: torch.device) -> torch.Tensor:
    """Which of the learned positions `count` patches of a row have.

    Computed as in training, in float32: for some counts rounding gives two neighbours the same position.
    """
    boundaries = torch.arange(1 / learned, 1.0, 1 / learned, device=device)
    at = torch.arange(count, device=device, dtype=torch.float32) * (1.0 / torch.tensor(count, device=device))
    return torch.bucketize(torch.clamp(at, max=1.0 - 1e-6), boundaries, right=True)


def load_encoder(
    config: Fields,
    files: ModelFiles,
    reader: WeightReader,
    *,
    width: int,
    device: torch.device,
    dtype: torch.dtype,
) -> Idefics3Tower:
    """Raises `BadModelFile`: a tensor is missing or of another shape; `UnsupportedModel`."""
    tower, connector = (Part(reader, at, device=device, dtype=dtype, name=files.name) for at in (_TOWER, _CONNECTOR))
    shades = colours(picture_options(files), HALF)
    return Idefics3Tower(read_tower_config(config), tower, connector, shades, outputs=width)
