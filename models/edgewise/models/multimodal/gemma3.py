"""Gemma 3 (Gemma Team 2025): every picture is a square of 896 x 896 pixels and 256 positions, which see each other.

Pan and scan, by which pictures of other shapes may be shown in parts as well, is off, as it is by default in the family's own
processor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from PIL import Image

from edgewise.models.decoder.fields import Fields
from edgewise.models.files import ModelFiles
from edgewise.models.multimodal.layout import Fitted, Pixels, medium, resized
from edgewise.models.multimodal.media import MediaKind
from edgewise.models.multimodal.pixels import edge_options, picture_options

PICTURE_TOKENS: Final = 256
_BEGIN: Final = "<start_of_image>"
_SOFT: Final = "<image_soft_token>"
_END: Final = "<end_of_image>"
_FLOATS: Final = 4
_MARKERS: Final[Mapping[MediaKind, str]] = {"image": _BEGIN}


@dataclass(frozen=True, slots=True, kw_only=True)
class Gemma3Layout:
    """Attributes:
    placeholders: Id of <image_soft_token>.
    side: Pixels of the square.
    count: Positions of a picture.
    """

    placeholders: Mapping[MediaKind, int]
    side: int
    count: int

    @property
    def markers(self) -> Mapping[MediaKind, str]:
        return _MARKERS

    def picture(self, pixels: Pixels, param: str, *, max_pixels: int | None = None) -> Fitted:
        """There is one size: `max_pixels` does not change it."""
        del param, max_pixels
        square = resized(pixels, self.side, self.side, Image.Resampling.BILINEAR)
        one = medium("image", square[None], self.count, whole=True)
        return Fitted(f"\n\n{_BEGIN}{_SOFT * self.count}{_END}\n\n", (one,), (self.side, self.side))


def workspace(config: Fields) -> int:
    """Bytes that encoding one picture takes at most."""
    vision = Fields(config.get("vision_config", {}), config.where)
    patches = (vision.size("image_size", 896) // vision.size("patch_size", 14)) ** 2
    return _FLOATS * patches * (10 * vision.size("hidden_size", 1152) + 3 * vision.size("intermediate_size", 4304))


def read_layout(config: Fields, files: ModelFiles) -> Gemma3Layout:
    """Raises:
    BadModelFile: A number is missing or impossible.
    """
    options = picture_options(files)
    side = Fields(edge_options(options), options.where).size("height", 896)
    older = config.size("image_token_index", 262_144)
    return Gemma3Layout(
        placeholders={"image": config.size("image_token_id", older)},
        side=side,
        count=config.size("mm_tokens_per_image", PICTURE_TOKENS),
    )
