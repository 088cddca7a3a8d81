"""What decoding a medium takes in memory, by its header and the limits of what is asked for: known before a sample is decoded.

Runs in the media process. The figures are bounds, not estimates, of what is held at once there and in the service, with one
exception: a recording whose header says less than is there is stopped at what was booked for it (`models.media.audio.decode`).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, Final

from edgewise.models.media.audio import claimed_seconds
from edgewise.models.media.pictures import picture_size
from edgewise.models.media.rates import RATE
from edgewise.models.media.sound_limits import MAX_BYTES, MAX_SECONDS
from edgewise.models.media.video import open_film

DECODED: Final = 12
"""Bytes of a pixel while it is decoded: as the file has it (4), in RGB (3), turned upright (3), and a row's worth of more."""
FITTED: Final = 24
"""Bytes of a pixel as a model takes it: three float32, twice where two frames make one."""
LEAST: Final = 16 << 20
"""What models make of however small a picture: parts of it, each of the model's own size (five of 896 x 896 for Gemma 3)."""
TOKEN: Final = 20 << 10
"""Bytes behind one placeholder of a film: 28 x 28 pixels of two frames."""
SAMPLE: Final = 4
COPIES: Final = 2
"""Of samples, on their way from one process to the other."""
_FRAMES: Final = 3
"""Of a film that are held at once."""
_BIT_RATE: Final = 6000
"""Bits a second below which no codec that is read here goes."""


def picture(data: bytes, param: str, *, max_pixels: int | None, **_: Any) -> tuple[dict[str, Any], bytes]:
    """Raises `InvalidRequest` for what is no picture, or beyond its limits."""
    width, height = picture_size(data, param)
    return {"bytes": _picture(width * height, max_pixels)}, b""


def film(
    data: bytes, param: str, *, max_tokens: int, sizes: Sequence[int] | None, **_: Any
) -> tuple[dict[str, Any], bytes]:
    """Of a film, an animation, or pictures of `sizes` bytes."""
    if sizes is not None:
        ends = list(itertools.accumulate(sizes))
        parts = [data[end - size : end] for size, end in zip(sizes, ends, strict=True)]
        pixels = max(width * height for width, height in (picture_size(part, param) for part in parts))
    elif data[4:8] == b"ftyp" or data.startswith(b"\x1a\x45\xdf\xa3"):
        with open_film(data, param) as opened:
            pixels = opened.size[0] * opened.size[1]
    else:
        width, height = picture_size(data, param)
        pixels = width * height
    return {"bytes": _FRAMES * DECODED * pixels + COPIES * TOKEN * max_tokens + LEAST}, b""


def audio(
    data: bytes, param: str, *, rate: int = RATE, max_bytes: int = MAX_BYTES, max_seconds: float = MAX_SECONDS
) -> tuple[dict[str, Any], bytes]:
    """Also "seconds", for which the bytes are enough: what the header says, or what so many bytes can hold at most."""
    claimed = claimed_seconds(data, param, max_bytes, max_seconds)
    seconds = len(data) * 8 / _BIT_RATE if claimed is None else max(0.0, claimed)
    seconds = min(max_seconds, seconds + 1)
    return {"seconds": seconds, "bytes": sound_bytes(seconds, rate)}, b""


def sound_bytes(seconds: float, rate: int = RATE) -> int:
    """What so many seconds of sound take while they are decoded."""
    return COPIES * SAMPLE * int(seconds * rate)


def _picture(pixels: int, max_pixels: int | None) -> int:
    seen = pixels if max_pixels is None else min(pixels, max_pixels)
    return DECODED * pixels + max(LEAST, FITTED * seen)
