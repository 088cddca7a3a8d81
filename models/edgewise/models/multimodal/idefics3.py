"""Idefics3 (Laurencon et al. 2024) and SmolVLM: a picture is shown in square tiles, row by row, and once more as a whole."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from PIL import Image

from edgewise.models.decoder.fields import Fields
from edgewise.models.files import ModelFiles
from edgewise.models.multimodal.layout import Fitted, Pixels, medium, resized
from edgewise.models.multimodal.media import Media, MediaKind
from edgewise.models.multimodal.pixels import edge_options, picture_options

_IMAGE: Final = "<image>"
_AROUND: Final = "<fake_token_around_image>"
_WHOLE: Final = "<global-img>"
_FLOATS: Final = 4
_MARKERS: Final[Mapping[MediaKind, str]] = {"image": _IMAGE}
_LONGEST: Final = 4096
"""The family's processor makes no picture longer than this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Idefics3Layout:
    """Attributes:
    placeholders: Id of <image>.
    tile: Pixels of a tile's side.
    longest: Pixels to which a picture's longer side is brought before it is cut.
    splits: Whether it is cut at all.
    count: Positions of a tile.
    """

    placeholders: Mapping[MediaKind, int]
    tile: int
    longest: int
    splits: bool
    count: int

    @property
    def markers(self) -> Mapping[MediaKind, str]:
        return _MARKERS

    @property
    def most_pixels(self) -> int:
        along = math.ceil(min(self.longest, _LONGEST) / self.tile) if self.splits else 0
        return (1 + along**2) * self.tile**2

    def picture(self, pixels: Pixels, param: str, *, max_pixels: int | None = None) -> Fitted:
        """Fewer tiles where `max_pixels` asks for it, one at least."""
        del param
        shown = self._enlarged(pixels, max_pixels)
        rows, columns = shown.shape[0] // self.tile, shown.shape[1] // self.tile
        whole = resized(shown, self.tile, self.tile, Image.Resampling.LANCZOS)
        if rows * columns == 1:
            return Fitted(f"{self._run(_WHOLE)}{_AROUND}", (self._tile(whole),), (self.tile, self.tile))
        tiles = [self._tile(tile) for tile in _cut(shown, self.tile)]
        lines = [
            "".join(self._run(f"<row_{row + 1}_col_{column + 1}>") for column in range(columns)) + "\n"
            for row in range(rows)
        ]
        text = f"{''.join(lines)}\n{self._run(_WHOLE)}{_AROUND}"
        return Fitted(text, (*tiles, self._tile(whole)), (shown.shape[1], shown.shape[0]))

    def _enlarged(self, pixels: Pixels, max_pixels: int | None) -> Pixels:
        """To whole tiles. Twice resampled, as in training: to the longest side, and from there to multiples of a tile."""
        height, width = pixels.shape[:2]
        first = rescaled(width, height, self.longest)
        longest = self.longest
        while longest > self.tile and not self._fits(first, max_pixels):
            longest -= self.tile
            first = rescaled(width, height, longest)
        if not self.splits or longest <= self.tile:
            shown = resized(pixels, *first, Image.Resampling.LANCZOS)
            return resized(shown, self.tile, self.tile, Image.Resampling.LANCZOS)
        shown = resized(pixels, *first, Image.Resampling.LANCZOS)
        return resized(shown, *tiled(*first, self.tile), Image.Resampling.LANCZOS)

    def _fits(self, size: tuple[int, int], max_pixels: int | None) -> bool:
        return max_pixels is None or math.prod(tiled(*size, self.tile)) <= max_pixels

    def _run(self, name: str) -> str:
        return f"{_AROUND}{name}{_IMAGE * self.count}"

    def _tile(self, pixels: Pixels) -> Media:
        return medium("image", pixels[None], self.count)


def rescaled(width: int, height: int, longest: int) -> tuple[int, int]:
    """The size whose longer side is `longest`; the other one is even."""
    ratio = width / height
    if width >= height:
        width, height = longest, int(longest / ratio)
        height += height % 2
    else:
        height, width = longest, int(longest * ratio)
        width += width % 2
    return _bounded(max(width, 1), max(height, 1))


def _bounded(width: int, height: int) -> tuple[int, int]:
    ratio = width / height
    if width >= height and width > _LONGEST:
        width, height = _LONGEST, int(_LONGEST / ratio)
    elif height > width and height > _LONGEST:
        width, height = int(_LONGEST * ratio), _LONGEST
    return max(width, 1), max(height, 1)


def tiled(width: int, height: int, tile: int) -> tuple[int, int]:
    """The next size of whole tiles, the longer side first."""
    ratio = width / height
    if width >= height:
        width = math.ceil(width / tile) * tile
        return width, math.ceil(int(width / ratio) / tile) * tile
    height = math.ceil(height / tile) * tile
    return math.ceil(int(height * ratio) / tile) * tile, height


def _cut(pixels: Pixels, tile: int) -> Iterator[Pixels]:
    for top in range(0, pixels.shape[0], tile):
        for left in range(0, pixels.shape[1], tile):
            yield pixels[top : top + tile, left : left + tile]


def workspace(config: Fields) -> int:
    """Bytes that encoding one tile takes at most."""
    vision = Fields(config.get("vision_config", {}), config.where)
    patches = (vision.size("image_size", 224) // vision.size("patch_size", 32)) ** 2
    return _FLOATS * patches * (10 * vision.size("hidden_size", 1152) + 3 * vision.size("intermediate_size", 3072))


def read_layout(config: Fields, files: ModelFiles) -> Idefics3Layout:
    """Raises:
    BadModelFile: A number is missing or impossible.
    """
    options = picture_options(files)
    vision = Fields(config.get("vision_config", {}), config.where)
    side, patch = vision.size("image_size", 224), vision.size("patch_size", 32)
    scale = config.size("scale_factor", 2)
    largest = options.get("max_image_size", {})
    tile = Fields(largest if isinstance(largest, Mapping) else {}, options.where).size("longest_edge", side)
    return Idefics3Layout(
        placeholders={"image": config.size("image_token_id", 128_257)},
        tile=tile,
        longest=Fields(edge_options(options), options.where).size("longest_edge", 4 * tile),
        splits=options.flag("do_image_splitting", True),
        count=max(1, (side // patch) ** 2 // scale**2),
    )
