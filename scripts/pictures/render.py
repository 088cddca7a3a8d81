"""Drawings to pixels: SVG through resvg, cut to what is drawn, centred in a square with its transparency."""

from __future__ import annotations

import importlib
import io
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from PIL import Image

Pixels = npt.NDArray[np.uint8]

_WIDE: Final = 320  # pixels in which a drawing is made before it is cut and made smaller
_MARGIN: Final = 0.04
_LEAST: Final = 0.12  # share of the drawing's side that its ink spans at least


def draw(svg: str, size: int) -> Pixels | None:
    """The drawing as [size, size, 4] RGBA, or None where it is damaged, blank or all but blank."""
    resvg: Any = importlib.import_module("resvg_py")  # needed here only, and no dependency of the product
    try:
        data = bytes(resvg.svg_to_bytes(svg_string=svg, width=_WIDE, dpi=96.0, skip_system_fonts=True))
    except (ValueError, OverflowError):  # what the renderer cannot draw
        return None
    with Image.open(io.BytesIO(data)) as image:
        return fit(image.convert("RGBA"), size)


def fit(image: Image.Image, size: int) -> Pixels | None:
    """Cut to its ink, centred, in a square of `size` with a small margin. White paper of the drawing's own counts as none."""
    pixels = np.asarray(image)
    inked = (pixels[..., 3] > 16) & ((pixels[..., :3] < 245).any(-1) | (pixels[..., 3] < 250))
    visible = pixels[..., 3] > 16
    box = _box(visible if visible.mean() < 0.98 else inked)
    if box is None or max(box[2] - box[0], box[3] - box[1]) < _LEAST * max(image.size):
        return None
    cut = image.crop(box)
    side = int(max(cut.size) * (1 + 2 * _MARGIN)) + 1
    square = Image.new("RGBA", (side, side), (255, 255, 255, 0))
    square.paste(cut, ((side - cut.width) // 2, (side - cut.height) // 2))
    # Premultiplied, or the colour of transparent pixels would bleed into edges.
    small = square.convert("RGBa").resize((size, size), Image.Resampling.LANCZOS).convert("RGBA")
    result = np.array(small)
    result[result[..., 3] == 0] = (255, 255, 255, 0)
    on_white = over(result, (255, 255, 255))
    if (on_white < 240).any(-1).mean() < 0.03 or on_white.reshape(-1, 3).std(0).max() < 8:
        return None
    return result


def _box(mask: npt.NDArray[np.bool_]) -> tuple[int, int, int, int] | None:
    rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    if not len(rows):
        return None
    return int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1


def over(picture: Pixels, colour: tuple[int, int, int]) -> Pixels:
    """An RGBA picture on a plain ground, RGB."""
    alpha = picture[..., 3:].astype(np.float32) / 255
    mixed = picture[..., :3] * alpha + np.array(colour, np.float32) * (1 - alpha)
    result: Pixels = mixed.round().astype(np.uint8)
    return result
