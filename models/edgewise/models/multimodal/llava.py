"""LLaVA-1.5 (Liu et al. 2023) and LLaVA-NeXT: pictures of one size, the latter with tiles of a larger one. Torch-free."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from PIL import Image

from edgewise.models.decoder.fields import Fields
from edgewise.models.files import ModelFiles
from edgewise.models.multimodal.layout import Fitted, Pixels, medium, resized
from edgewise.models.multimodal.media import MediaKind
from edgewise.models.multimodal.pixels import edge_options, picture_options

_MARKER: Final = "<image>"
_MAX_SIDE: Final = 1 << 12
_MAX_TILES: Final = 1 << 8
_FLOATS: Final = 4
TEXT_DEFAULTS: Final[Mapping[str, Mapping[str, Any]]] = MappingProxyType(
    {
        "llama": {
            "vocab_size": 32_000,
            "hidden_size": 4096,
            "intermediate_size": 11_008,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "max_position_embeddings": 2048,
        },
        "mistral": {
            "vocab_size": 32_000,
            "hidden_size": 4096,
            "intermediate_size": 14_336,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "max_position_embeddings": 131_072,
        },
    }
)
"""Those of transformers' classes: the first checkpoints name only what differs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiles:
    """How a picture is cut.

    Attributes:
        rows, columns: Tiles down and across.
        height, width: Of the picture in them, in pixels; the rest of the tiles is black, half before and half after it.
        cut_rows, cut_columns: Rows of patches above and below, columns left and right, that show no picture and are dropped.
    """

    rows: int
    columns: int
    height: int
    width: int
    cut_rows: int
    cut_columns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LlavaLayout:
    """Attributes:
    placeholder: Id of <image>.
    side: Pixels of the tower's picture.
    patches: Patches along its side.
    extra: Rows of a picture that show no patch (the class token, where it is kept).
    crop: Whether the middle of the picture is taken; else it is stretched to a square.
    grids: (height, width) in pixels that a picture may be tiled to; none for LLaVA-1.5, which takes one tile.
    """

    placeholder: int
    side: int
    patches: int
    extra: int
    crop: bool
    grids: tuple[tuple[int, int], ...]

    @property
    def markers(self) -> Mapping[MediaKind, str]:
        return {"image": _MARKER}

    @property
    def placeholders(self) -> Mapping[MediaKind, int]:
        return {"image": self.placeholder}

    @property
    def most_pixels(self) -> int:
        return self.side**2 + max(map(math.prod, self.grids), default=0)

    def picture(self, pixels: Pixels, param: str, *, max_pixels: int | None = None) -> Fitted:
        """See `Layout`. `max_pixels` chooses among the sizes that a picture may be tiled to, of which the smallest is always
        allowed."""
        del param
        base = self.patches**2 + self.extra
        if not self.grids:
            shown = self._square(pixels)
            one = medium("image", shown[None], base)
            return Fitted(_MARKER * base, (one,), (self.side, self.side))
        tiles = self.tiles(pixels.shape[0], pixels.shape[1], max_pixels)
        whole = resized(pixels, self.side, self.side, Image.Resampling.BICUBIC)
        frames = np.stack([whole, *self._cut(pixels, tiles)])
        rows = tiles.rows * self.patches - 2 * tiles.cut_rows
        columns = tiles.columns * self.patches - 2 * tiles.cut_columns
        count = base + rows * (columns + 1)
        told = {
            "rows": tiles.rows,
            "columns": tiles.columns,
            "cut_rows": tiles.cut_rows,
            "cut_columns": tiles.cut_columns,
        }
        one = medium("image", frames, count, options=told)
        return Fitted(_MARKER * count, (one,), (tiles.width, tiles.height))

    def tiles(self, height: int, width: int, max_pixels: int | None = None) -> Tiles:
        """How a picture of this size is cut: the size that shows most of its pixels and wastes least, as transformers'
        `select_best_resolution`."""
        allowed = [size for size in self.grids if max_pixels is None or size[0] * size[1] <= max_pixels]
        allowed = allowed or [min(self.grids, key=math.prod)]
        best_height, best_width = max(allowed, key=lambda size: _worth(size, height, width))
        across, down = best_width / width, best_height / height
        if across < down:
            shown = min(math.ceil(height * across), best_height), best_width
        else:
            shown = best_height, min(math.ceil(width * down), best_width)
        rows, columns = best_height // self.side, best_width // self.side
        all_rows, all_columns = rows * self.patches, columns * self.patches
        cut_rows = cut_columns = 0
        if width / height > all_columns / all_rows:
            cut_rows = (all_rows - int(round(height * (all_columns / width), 7))) // 2
        else:
            cut_columns = (all_columns - int(round(width * (all_rows / height), 7))) // 2
        return Tiles(
            rows=rows,
            columns=columns,
            height=shown[0],
            width=shown[1],
            cut_rows=cut_rows,
            cut_columns=cut_columns,
        )

    def _square(self, pixels: Pixels) -> Pixels:
        if not self.crop:
            return resized(pixels, self.side, self.side, Image.Resampling.BICUBIC)
        height, width = pixels.shape[:2]
        shorter = min(height, width)
        tall, wide = self.side * height // shorter, self.side * width // shorter
        if max(tall, wide) > self.side * _MAX_TILES:  # nothing of such a strip is left after the cut but its middle
            pixels, tall, wide = _middle(pixels, self.side)
        shown = resized(pixels, wide, tall, Image.Resampling.BICUBIC)
        top, left = (tall - self.side) // 2, (wide - self.side) // 2
        return shown[top : top + self.side, left : left + self.side]

    def _cut(self, pixels: Pixels, tiles: Tiles) -> list[Pixels]:
        side = self.side
        canvas = np.zeros((tiles.rows * side, tiles.columns * side, 3), dtype=np.uint8)
        top, left = (canvas.shape[0] - tiles.height) // 2, (canvas.shape[1] - tiles.width) // 2
        shown = resized(pixels, tiles.width, tiles.height, Image.Resampling.BICUBIC)
        canvas[top : top + tiles.height, left : left + tiles.width] = shown
        places = [(row, column) for row in range(tiles.rows) for column in range(tiles.columns)]
        return [canvas[row * side : (row + 1) * side, column * side : (column + 1) * side] for row, column in places]


def _middle(pixels: Pixels, side: int) -> tuple[Pixels, int, int]:
    """The middle square of a picture, and the size that it is brought to."""
    height, width = pixels.shape[:2]
    shorter = min(height, width)
    top, left = (height - shorter) // 2, (width - shorter) // 2
    return pixels[top : top + shorter, left : left + shorter], side, side


def _worth(size: tuple[int, int], height: int, width: int) -> tuple[int, int]:
    scale = min(size[1] / width, size[0] / height)
    shown = min(int(width * scale) * int(height * scale), width * height)
    return shown, shown - math.prod(size)


def read_layout(config: Fields, files: ModelFiles) -> LlavaLayout:
    """Raises:
    BadModelFile: A number is missing or impossible.
    """
    vision = vision_fields(config)
    side, patch = vision.size("image_size", 224, _MAX_SIDE), vision.size("patch_size", 32, _MAX_SIDE)
    size = edge_options(picture_options(files))
    whole = config.get("vision_feature_select_strategy", "default") == "full"
    has_class = has_class_token(vision)
    return LlavaLayout(
        placeholder=config.size("image_token_index", config.size("image_token_id", 32_000)),
        side=side,
        patches=side // patch,
        extra=int(has_class) - int(not whole),
        crop="height" not in size,
        grids=_grids(config, side) if config.get("model_type") == "llava_next" else (),
    )


def has_class_token(vision: Fields) -> bool:
    """SigLIP's towers have none."""
    return bool(vision.get("model_type", "clip_vision_model") == "clip_vision_model")


def vision_fields(config: Fields) -> Fields:
    """The tower's part of the configuration."""
    own = config.get("vision_config", {})
    if not isinstance(own, Mapping):
        raise config.bad("vision_config", "an object")
    return Fields(own, f"{config.where}: 'vision_config'")


def _grids(config: Fields, side: int) -> tuple[tuple[int, int], ...]:
    usual = [[336, 672], [672, 336], [672, 672], [1008, 336], [336, 1008]]
    sizes = config.get("image_grid_pinpoints", usual)
    rule = f"a list of [height, width], multiples of {side}, of at most {_MAX_TILES} tiles"
    if not isinstance(sizes, list) or not sizes:
        raise config.bad("image_grid_pinpoints", rule)
    for size in sizes:
        if not isinstance(size, list) or len(size) != 2 or not all(type(edge) is int and edge > 0 for edge in size):
            raise config.bad("image_grid_pinpoints", rule)
        if any(edge % side for edge in size) or math.prod(size) > _MAX_TILES * side * side:
            raise config.bad("image_grid_pinpoints", rule)
    return tuple((size[0], size[1]) for size in sizes)


def workspace(config: Fields) -> int:
    """Bytes of encoding one picture: a tile's activations, and what all tiles leave (`Family.workspace`)."""
    vision = vision_fields(config)
    side, patch = vision.size("image_size", 224, _MAX_SIDE), vision.size("patch_size", 32, _MAX_SIDE)
    width, inner = vision.size("hidden_size", 768), vision.size("intermediate_size", 3072)
    heads = vision.size("num_attention_heads", 12)
    text = config.get("text_config")
    outputs = Fields(text if isinstance(text, Mapping) else {}, config.where).size("hidden_size", 4096)
    rows = (side // patch) ** 2 + 1
    tiles = 1
    if config.get("model_type") == "llava_next":
        tiles += max(height * across for height, across in _grids(config, side)) // side**2
    pixels = 3 * side * side * 3
    tile = rows * (8 * width + 2 * inner) + heads * rows * rows + pixels
    return (tile + 3 * tiles * rows * max(outputs, width)) * _FLOATS
