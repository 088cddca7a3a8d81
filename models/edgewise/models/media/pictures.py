"""Encoded pictures from callers to pixels: bytes, size and frame are checked against limits before a pixel is decoded."""

from __future__ import annotations

import io
import struct
import threading
import warnings
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps

from edgewise.core.errors import InvalidRequest
from edgewise.core.sizes import mib

MAX_BYTES = 32 << 20
"""Encoded bytes of one picture."""
MAX_PIXELS = 32_000_000
"""Pictures with more are refused by what their header says: 30 bytes may claim gigabytes."""
MAX_FRAME = 255
"""Last frame of an animation that can be asked for; those before it have to be decoded on the way."""
_WARNINGS = threading.Lock()  # filters of warnings belong to the process: two threads would restore each other's
_READ = ("PNG", "JPEG", "WEBP", "GIF")
_DAMAGED = (
    OSError,
    ValueError,
    SyntaxError,
    TypeError,
    LookupError,
    ArithmeticError,
    EOFError,
    struct.error,
    zlib.error,
)
"""What Pillow's decoders raise on hostile files."""

_EIGHT_OF_SIXTEEN = np.rint(np.arange(65536) / 257).astype(np.uint8)

Pixels = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureLimits:
    """What is taken from a caller.

    Attributes:
        bytes: Of the encoded picture.
        pixels: Width times height, of every frame.
        frame: Number of the last frame that can be asked for.
    """

    bytes: int = MAX_BYTES
    pixels: int = MAX_PIXELS
    frame: int = MAX_FRAME


_DEFAULT = PictureLimits()


def open_picture(data: bytes, param: str, *, frame: int = 0, limits: PictureLimits = _DEFAULT) -> Image.Image:
    """A picture as a viewer shows it: one frame, turned as its orientation says, any other broken metadata ignored.

    Args:
        data: PNG, JPEG, WebP or GIF.
        param: The field that it came in, for messages.
        frame: Which frame of an animation, from 0.
        limits: What is taken.

    Raises:
        InvalidRequest: No picture of a known format, cut off, damaged, without this frame, or beyond a limit.
    """
    if not 0 <= frame <= limits.frame:
        raise InvalidRequest(f"'frame' is {frame}: frames 0 to {limits.frame} can be asked for.", param="frame")
    picture = _opened(data, param, limits)
    try:
        if frame:
            with _quiet():
                _seek(picture, frame, param, limits)
        picture.load()
    except Image.DecompressionBombError as error:
        raise _too_large(param, "far more", limits) from error
    except _DAMAGED as error:
        raise InvalidRequest(
            f"'{param}' is damaged or cut off ({error}): save it again, or send the whole file.", param=param
        ) from error
    return _turned(picture)


def picture_size(data: bytes, param: str, *, limits: PictureLimits = _DEFAULT) -> tuple[int, int]:
    """(width, height) as the header says; nothing is decoded. Raises as `open_picture`."""
    picture = _opened(data, param, limits)
    return picture.size


def read_rgb(data: bytes, param: str, *, frame: int = 0, limits: PictureLimits = _DEFAULT) -> Pixels:
    """[height, width, 3]; what is transparent becomes white. Raises as `open_picture`."""
    return np.asarray(to_rgb(open_picture(data, param, frame=frame, limits=limits)), dtype=np.uint8)


def frame_seconds(data: bytes, param: str, *, limits: PictureLimits = _DEFAULT) -> list[float]:
    """How long each frame of an animation is shown, as far as frames can be asked for; [0.0] for a picture that stands still.

    Frames without a time of their own are shown for 0.1 s, as browsers do. Raises as `open_picture`.
    """
    open_picture(data, param, limits=limits)
    shown: list[float] = []
    try:
        with _quiet():
            picture = Image.open(io.BytesIO(data), formats=_READ)
            while len(shown) <= limits.frame:
                picture.seek(len(shown))
                _check_size(picture, param, limits)
                picture.load()  # WebP says the time only then
                shown.append(float(picture.info.get("duration") or 100.0) / 1000)
    except _DAMAGED:  # no frame more, or none that can be read: a film ends there
        pass
    return shown if len(shown) > 1 else [0.0]


def to_rgb(picture: Image.Image) -> Image.Image:
    """In 8 bits a channel, on white where it is transparent. CMYK is converted without colour profiles, as Pillow does."""
    picture = eight_bits(picture)
    if not is_transparent(picture):
        return picture.convert("RGB")
    shown = Image.new("RGB", picture.size, "white")
    picture = picture.convert("RGBA")
    shown.paste(picture, mask=picture.getchannel("A"))
    return shown


def is_transparent(picture: Image.Image) -> bool:
    """Whether it has an alpha channel, or a colour that stands for nothing."""
    return picture.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in picture.info


def eight_bits(picture: Image.Image) -> Image.Image:
    """Grey of 16 bits scaled to 8: Pillow's own conversion cuts everything above 255 off."""
    if not picture.mode.startswith("I"):
        return picture
    deep = np.asarray(picture)
    if deep.dtype != np.uint16:
        deep = np.clip(deep, 0, 65535).astype(np.uint16)
    grey = _EIGHT_OF_SIXTEEN[deep]
    key = picture.info.get("transparency")
    if not isinstance(key, int):
        return Image.fromarray(grey)
    return Image.fromarray(np.stack([grey, np.where(deep == key, 0, 255).astype(np.uint8)], axis=-1), "LA")


def _opened(data: bytes, param: str, limits: PictureLimits) -> Image.Image:
    """Its header read and within the limits."""
    if len(data) > limits.bytes:
        raise InvalidRequest(
            f"'{param}' has {mib(len(data))}: at most {mib(limits.bytes)} are taken. Send it smaller or compressed.",
            param=param,
        )
    try:
        with _quiet():  # our own bound is lower
            picture = Image.open(io.BytesIO(data), formats=_READ)
    except Image.DecompressionBombError as error:
        raise _too_large(param, "far more", limits) from error
    except _DAMAGED as error:
        raise InvalidRequest(
            f"'{param}' is no picture that can be read ({len(data)} bytes): send PNG, JPEG, WebP or GIF.", param=param
        ) from error
    _check_size(picture, param, limits)
    return picture


def _check_size(picture: Image.Image, param: str, limits: PictureLimits) -> None:
    width, height = picture.size
    if width * height > limits.pixels:
        raise _too_large(param, f"{width} x {height}", limits)


def _too_large(param: str, claimed: str, limits: PictureLimits) -> InvalidRequest:
    return InvalidRequest(
        f"'{param}' says it has {claimed} pixels: at most {limits.pixels} are taken. Make it smaller.", param=param
    )


def _seek(picture: Image.Image, frame: int, param: str, limits: PictureLimits) -> None:
    for number in range(1, frame + 1):
        try:
            picture.seek(number)
        except EOFError as error:
            raise InvalidRequest(
                f"'frame' is {frame}: the picture in '{param}' has {number} frames, counted from 0.", param="frame"
            ) from error
        _check_size(picture, param, limits)  # a frame of a GIF may be larger than its header said


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
    except _DAMAGED:
        return picture
