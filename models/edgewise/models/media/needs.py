"""What decoding a medium takes in memory, by its header and the limits of what is asked for: known before a sample is decoded.

Runs in the media process. The figures are bounds, not estimates, of what is held at once there and in the service, with one
exception: recordings, of which more may be there than is known. Decoding stops then (`models.media.audio.decode`).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, Final

from edgewise.models.media.audio import claimed_seconds
from edgewise.models.media.fit import layout_of
from edgewise.models.media.pictures import picture_size
from edgewise.models.media.sound_limits import MAX_BYTES, MAX_SECONDS
from edgewise.models.media.video import open_film

PIXEL: Final = 3
"""Bytes of a pixel as it is handed on: RGB, a byte each."""
DECODED: Final = 14
"""Bytes of a pixel while it is decoded, of PNG and GIF: with transparency, on white, and turned upright (measured: 13.8)."""
_DECODED_JPEG: Final = 12
"""Likewise (measured: 10.7); it is never transparent."""
_DECODED_WEBP: Final = 19
"""Likewise (measured: 18.1): its decoder keeps the frame before."""
_BROUGHT_TO_SIZE: Final = 7
"""Bytes of a pixel after that, while a model's own size is made of it."""
COPIES: Final = 8
"""Of what a model sees: brought to size, put together, and on its way from one process to the other."""
LEAST: Final = 16 << 20
"""What is made of however small a picture: parts of it, each of the model's own size."""
TOKEN: Final = 12 << 10
"""Bytes of a film behind one placeholder, at most: 512 x 512 pixels in 64 of them (SmolVLM)."""
_FILM: Final = 36
"""Bytes of a pixel of a film: its decoder keeps frames that others refer to."""
_ANIMATION: Final = 2 * DECODED
"""Likewise: the frame before is part of the next."""
_BIT_RATE: Final = 64_000
"""Bits a second of a recording that does not say how long it is; one with fewer is decoded in more than one go."""


def picture(data: bytes, param: str, *, pan_and_scan: bool | None, **model: Any) -> tuple[dict[str, Any], bytes]:
    """Raises `InvalidRequest` for what is no picture, or beyond its limits."""
    width, height = picture_size(data, param)
    seen = COPIES * PIXEL * layout_of(model, pan_and_scan).most_pixels
    fitting = _BROUGHT_TO_SIZE * width * height + seen
    return {"bytes": max(_decoded(data) * width * height, fitting, LEAST)}, b""


def film(data: bytes, param: str, *, max_tokens: int, sizes: Sequence[int] | None) -> tuple[dict[str, Any], bytes]:
    """Of a film, an animation, or pictures of `sizes` bytes."""
    pixels, each = _frame(data, param, sizes)
    decoding = each * pixels + TOKEN * max_tokens
    handing_on = PIXEL * pixels + COPIES * TOKEN * max_tokens
    return {"bytes": max(decoding, handing_on) + LEAST}, b""


def _frame(data: bytes, param: str, sizes: Sequence[int] | None) -> tuple[int, int]:
    """Pixels of the largest frame, and bytes that each of them takes."""
    if sizes is not None:
        ends = list(itertools.accumulate(sizes))
        parts = [data[end - size : end] for size, end in zip(sizes, ends, strict=True)]
        pixels = max(width * height for width, height in (picture_size(part, param) for part in parts))
        return pixels, PIXEL + max(map(_decoded, parts))  # one is decoded while the one before it is there
    if data[4:8] == b"ftyp" or data.startswith(b"\x1a\x45\xdf\xa3"):
        with open_film(data, param) as opened:
            return opened.size[0] * opened.size[1], _FILM
    width, height = picture_size(data, param)
    return width * height, _ANIMATION


def _decoded(data: bytes) -> int:
    if data.startswith(b"\xff\xd8"):
        return _DECODED_JPEG
    return _DECODED_WEBP if data[8:12] == b"WEBP" else DECODED


def audio(
    data: bytes, param: str, *, max_bytes: int = MAX_BYTES, max_seconds: float = MAX_SECONDS
) -> tuple[dict[str, Any], bytes]:
    """Its "seconds": what the header says, or so many as are likely, and one more; more may be there."""
    claimed = claimed_seconds(data, param, max_bytes, max_seconds)
    seconds = len(data) * 8 / _BIT_RATE if claimed is None else max(0.0, claimed)
    return {"seconds": min(max_seconds, seconds + 1)}, b""
