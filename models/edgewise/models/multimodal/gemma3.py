"""Gemma 3 (Gemma Team 2025): every picture is a square of 896 x 896 pixels and 256 positions, which see each other.

With pan and scan, a picture of another shape is also shown in parts that follow each other along its longer side. It is on where
the caller asks for it, or the model's own files do.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from PIL import Image

from edgewise.models.decoder.fields import Fields
from edgewise.models.files import ModelFiles
from edgewise.models.multimodal.layout import Fitted, Pixels, medium, resized
from edgewise.models.multimodal.media import Media, MediaKind
from edgewise.models.multimodal.pixels import edge_options, picture_options

PICTURE_TOKENS: Final = 256
_BEGIN: Final = "<start_of_image>"
_SOFT: Final = "<image_soft_token>"
_END: Final = "<end_of_image>"
_SCANNED: Final = "Here is the original image {whole} and here are some crops to help you see better {parts}"
"""As in training."""
_FLOATS: Final = 4
_MARKERS: Final[Mapping[MediaKind, str]] = {"image": _BEGIN}


@dataclass(frozen=True, slots=True, kw_only=True)
class PanAndScan:
    """Attributes:
    on: Whether pictures are shown in parts at all.
    least_ratio: Of the longer side to the shorter, from which on they are.
    most: Parts at most.
    least_side: Pixels that each side of a part has at least.
    """

    on: bool = False
    least_ratio: float = 1.2
    most: int = 4
    least_side: int = 256

    def parts(self, width: int, height: int) -> int:
        """In how many a picture of this size is shown; 0 where it is not."""
        longer, shorter = max(width, height), min(width, height)
        if not self.on or longer / shorter < self.least_ratio:
            return 0
        count = min(self.most, max(2, min(longer // self.least_side, math.floor(longer / shorter + 0.5))))
        return 0 if min(shorter, math.ceil(longer / count)) < self.least_side else count


@dataclass(frozen=True, slots=True, kw_only=True)
class Gemma3Layout:
    """Attributes:
    placeholders: Id of <image_soft_token>.
    side: Pixels of the square.
    count: Positions of a picture, and of each of its parts.
    scan: How pictures are shown in parts.
    """

    placeholders: Mapping[MediaKind, int]
    side: int
    count: int
    scan: PanAndScan = field(default_factory=PanAndScan)

    @property
    def markers(self) -> Mapping[MediaKind, str]:
        return _MARKERS

    @property
    def most_pixels(self) -> int:
        return (1 + (self.scan.most if self.scan.on else 0)) * self.side**2

    def scanning(self, on: bool) -> Gemma3Layout:
        """See `layout.ScanLayout`."""
        return replace(self, scan=replace(self.scan, on=on))

    def picture(self, pixels: Pixels, param: str, *, max_pixels: int | None = None) -> Fitted:
        """There is one size of the whole. It is shown in parts as well only if they have `max_pixels` at most together."""
        del param
        height, width = pixels.shape[:2]
        count = self.scan.parts(width, height)
        if max_pixels is not None and count * self.side**2 > max_pixels:
            count = 0
        whole = self._square(pixels)
        text = f"\n\n{_BEGIN}{_SOFT * self.count}{_END}\n\n"
        if not count:
            return Fitted(text, (whole,), (self.side, self.side))
        step = math.ceil(max(width, height) / count)
        cuts = [slice(at * step, (at + 1) * step) for at in range(count)]
        parts = [self._square(pixels[:, cut] if width >= height else pixels[cut]) for cut in cuts]
        size = (count * self.side, self.side) if width >= height else (self.side, count * self.side)
        return Fitted(_SCANNED.format(whole=text, parts=" ".join([text] * count)), (whole, *parts), size)

    def _square(self, pixels: Pixels) -> Media:
        square = resized(pixels, self.side, self.side, Image.Resampling.BILINEAR)
        return medium("image", square[None], self.count, whole=True)


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
        scan=_scan(options),
    )


def _scan(options: Fields) -> PanAndScan:
    """What is missing or null is as by default in the family's own processor."""
    usual = PanAndScan()
    return PanAndScan(
        on=options.flag("do_pan_and_scan", usual.on),
        least_ratio=options.positive("pan_and_scan_min_ratio_to_activate", usual.least_ratio),
        most=options.size("pan_and_scan_max_num_crops", usual.most),
        least_side=options.size("pan_and_scan_min_crop_size", usual.least_side),
    )
