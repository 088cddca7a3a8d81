"""How LLaVA-1.5 and LLaVA-NeXT see: a tower's patches, projected into the decoder's width, tile by tile."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

import torch

from edgewise.core.errors import BadModelFile
from edgewise.models.decoder.fields import Fields
from edgewise.models.files import ModelFiles
from edgewise.models.multimodal.llava import vision_fields
from edgewise.models.multimodal.media import Media
from edgewise.models.multimodal.pixels import CLIP, HALF, Colours, colours, picture_options
from edgewise.models.multimodal.protocol import SlicedEncoder, Slices
from edgewise.models.multimodal.towers.clip import ACTIVATIONS, ClipTower, read_clip_config
from edgewise.models.multimodal.towers.colours import normalised
from edgewise.models.multimodal.towers.weights import Part
from edgewise.models.weights.reader import WeightReader

_TOWER: Final = (
    "vision_tower.vision_model.",
    "model.vision_tower.vision_model.",
    "vision_tower.",
    "model.vision_tower.",
)
_PROJECTOR: Final = ("multi_modal_projector.", "model.multi_modal_projector.")


class LlavaEncoder(SlicedEncoder):
    """A `MediaEncoder`.

    Args:
        keep_class: Whether the row of the class token is kept.
        layers: Which of the tower's states are projected, side by side.
        newline: Stands at the end of each row of a tiled picture; None where pictures are not tiled.
    """

    def __init__(
        self,
        tower: ClipTower,
        projector: Projector,
        shades: Colours,
        *,
        layers: Sequence[int],
        keep_class: bool,
        newline: torch.Tensor | None,
    ) -> None:
        self._tower = tower
        self._projector = projector
        self._shades = shades
        self._layers = layers
        self._keep_class = keep_class
        self._newline = newline

    def slices(self, item: Media) -> Slices:
        """See `SlicedEncoder`."""
        tiles = []
        for pixels in normalised(item, self._shades, self._projector.first.weight):
            seen = yield from self._tower.states(pixels, self._layers)
            tiles.append(self._projector(seen if self._keep_class else seen[1:]))
        if self._newline is None:
            return tiles[0]
        return torch.cat([tiles[0], self._joined(torch.stack(tiles[1:]), item, self._newline)])

    def _joined(self, tiles: torch.Tensor, item: Media, newline: torch.Tensor) -> torch.Tensor:
        """[tiles, rows, width] -> the rows of the whole picture, line by line, without the black around it."""
        rows, columns = int(item.options["rows"]), int(item.options["columns"])
        cut_rows, cut_columns = int(item.options["cut_rows"]), int(item.options["cut_columns"])
        across, width = self._tower.config.side // self._tower.config.patch, tiles.shape[-1]
        picture = tiles.view(rows, columns, across, across, width).transpose(1, 2)
        picture = picture.reshape(rows * across, columns * across, width)
        picture = picture[cut_rows : rows * across - cut_rows, cut_columns : columns * across - cut_columns]
        ends = newline.expand(picture.shape[0], 1, width)
        return torch.cat([picture, ends], dim=1).flatten(0, 1)


class Projector:
    """Two products with an activation between them."""

    def __init__(self, part: Part, inputs: int, outputs: int, activation: str, *, bias: bool) -> None:
        self.first = part.linear("linear_1", inputs, outputs, bias=bias)
        self._second = part.linear("linear_2", outputs, outputs, bias=bias)
        self._activation = ACTIVATIONS[activation]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self._second(self._activation(self.first(x)))


def load_encoder(
    config: Fields, files: ModelFiles, reader: WeightReader, *, width: int, device: torch.device, dtype: torch.dtype
) -> LlavaEncoder:
    """See `multimodal.loading.EncoderLoader`."""
    vision = vision_fields(config)
    tower = read_clip_config(vision)
    layers = _layers(config, tower.layers)
    part = partial(Part, reader, device=device, dtype=dtype, name=files.name)
    activation = config.get("projector_hidden_act", "gelu")
    if activation not in ACTIVATIONS:
        raise config.unsupported("projector_hidden_act", ", ".join(ACTIVATIONS))
    strategy = config.get("vision_feature_select_strategy", "default")
    if strategy not in ("default", "full"):
        raise config.unsupported("vision_feature_select_strategy", "default and full")
    newline = None
    if config.get("model_type") == "llava_next":
        newline = part(("image_newline", "model.image_newline")).take("", width)
    return LlavaEncoder(
        ClipTower(tower, part(_TOWER), max(layers)),
        Projector(
            part(_PROJECTOR),
            tower.width * len(layers),
            width,
            activation,
            bias=config.flag("multimodal_projector_bias", True),
        ),
        colours(picture_options(files), CLIP if tower.clip else HALF),
        layers=layers,
        keep_class=strategy == "full",
        newline=newline,
    )


def _layers(config: Fields, count: int) -> list[int]:
    """Numbers of states, the one before the first layer being 0."""
    named = config.get("vision_feature_layer", -2)
    layers = named if isinstance(named, list) else [named]
    if not layers or not all(type(layer) is int and -count - 1 <= layer <= count for layer in layers):
        raise BadModelFile(f"{config.where}: 'vision_feature_layer' is {named!r}; the tower has {count} layers.")
    return [layer if layer >= 0 else count + 1 + layer for layer in layers]
