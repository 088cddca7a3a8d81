"""Pictures to the pixels that a model draws on, and what it has drawn to encoded pictures."""

from __future__ import annotations

import io
from typing import Literal

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps

from edgewise.models.media.pictures import eight_bits, is_transparent, open_picture, to_rgb

Format = Literal["png", "jpeg", "webp"]


def read_pixels(data: bytes, width: int, height: int, param: str = "image") -> npt.NDArray[np.uint8]:
    """[height, width, 3]; a picture of other proportions is cut at its edges, transparent parts become white."""
    return np.asarray(_fit(to_rgb(open_picture(data, param)), width, height), dtype=np.uint8)


def read_mask(data: bytes, width: int, height: int, param: str = "mask") -> npt.NDArray[np.uint8]:
    """[height, width]: 255 where the picture is drawn anew.

    That is where the mask is transparent, as OpenAI has it; a mask without transparency is drawn anew where it is white.
    """
    picture = eight_bits(open_picture(data, param))
    drawn = (
        ImageOps.invert(picture.convert("RGBA").getchannel("A")) if is_transparent(picture) else picture.convert("L")
    )
    fitted = np.asarray(_fit(drawn, width, height), dtype=np.uint8)
    return np.multiply(fitted >= 128, 255, dtype=np.uint8)


def _fit(picture: Image.Image, width: int, height: int) -> Image.Image:
    return ImageOps.fit(picture, (width, height), method=Image.Resampling.LANCZOS)


def encode(pixels: npt.NDArray[np.uint8], form: Format = "png", quality: int = 90) -> bytes:
    """Encoded picture; `quality` (0 to 100) is of JPEG and WebP."""
    return _save(Image.fromarray(pixels), form, quality)


def convert(png: bytes, form: Format, quality: int = 90) -> bytes:
    """A picture of our own in another format."""
    return png if form == "png" else _save(Image.open(io.BytesIO(png)), form, quality)


def _save(picture: Image.Image, form: Format, quality: int) -> bytes:
    out = io.BytesIO()
    if form == "png":
        picture.save(out, "PNG", compress_level=6)
    else:
        picture.save(out, form.upper(), quality=max(1, quality) if form == "jpeg" else quality)
    return out.getvalue()
