"""Encoded pictures to pixels and back; what comes from callers is checked before a pixel of it is decoded."""

from __future__ import annotations

import io
import struct
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps

from edgewise.core.errors import InvalidRequest

Format = Literal["png", "jpeg", "webp"]
MAX_PIXELS = 32_000_000
"""Pictures with more are refused by what their header says: 30 bytes may claim gigabytes."""
_WARNINGS = threading.Lock()  # filters of warnings belong to the process: two threads would restore each other's
_READ = ("PNG", "JPEG", "WEBP", "GIF")


def open_picture(data: bytes, param: str) -> Image.Image:
    """A picture as a viewer shows it: its first frame, turned as its orientation says, any other broken metadata ignored.

    Raises:
        InvalidRequest: No picture of a known format, cut off, damaged, or larger than `MAX_PIXELS`.
    """
    try:
        with _quiet():  # our own bound is lower
            picture = Image.open(io.BytesIO(data), formats=_READ)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise InvalidRequest(
            f"'{param}' is no picture that can be read ({len(data)} bytes): send PNG, JPEG, WebP or GIF.", param=param
        ) from error
    width, height = picture.size
    if width * height > MAX_PIXELS:
        raise InvalidRequest(
            f"'{param}' says it is {width} x {height} pixels: at most {MAX_PIXELS} pixels are taken. Make it smaller.",
            param=param,
        )
    try:
        picture.load()
    except (OSError, ValueError, SyntaxError, IndexError, EOFError) as error:
        raise InvalidRequest(f"'{param}' is damaged or cut off: {error}.", param=param) from error
    return _turned(picture)


@contextmanager
def _quiet() -> Iterator[None]:
    """Pillow warns of what callers send; they are told by our own errors, and a log is not theirs to fill."""
    with _WARNINGS, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _turned(picture: Image.Image) -> Image.Image:
    """Upright by its EXIF orientation; a block of metadata that cannot be read says nothing."""
    try:
        with _quiet():
            return ImageOps.exif_transpose(picture)
    except (OSError, ValueError, SyntaxError, TypeError, LookupError, ArithmeticError, struct.error):
        return picture  # what Pillow's parser raises on hostile blocks


def read_pixels(data: bytes, width: int, height: int, param: str = "image") -> npt.NDArray[np.uint8]:
    """[height, width, 3]; a picture of other proportions is cut at its edges, transparent parts become white."""
    picture = open_picture(data, param)
    if picture.mode in ("RGBA", "LA", "PA") or "transparency" in picture.info:
        alpha = picture.convert("RGBA")
        picture = Image.alpha_composite(Image.new("RGBA", alpha.size, "white"), alpha)
    return np.asarray(_fit(picture.convert("RGB"), width, height), dtype=np.uint8)


def read_mask(data: bytes, width: int, height: int, param: str = "mask") -> npt.NDArray[np.uint8]:
    """[height, width]: 255 where the picture is drawn anew.

    That is where the mask is transparent, as OpenAI has it; a mask without transparency is drawn anew where it is white.
    """
    picture = open_picture(data, param)
    if picture.mode in ("RGBA", "LA", "PA") or "transparency" in picture.info:
        drawn = ImageOps.invert(picture.convert("RGBA").getchannel("A"))
    else:
        drawn = picture.convert("L")
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
