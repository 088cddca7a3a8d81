"""Names of colours, the main colour of a picture, and pictures in other colours.

Hues are counted in turns: 0 is red, 1/3 green, 2/3 blue.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import torch

Pixels = npt.NDArray[np.uint8]

HUES: Final = {
    "red": 0.0,
    "orange": 0.075,
    "yellow": 0.145,
    "green": 0.36,
    "blue": 0.59,
    "purple": 0.77,
    "pink": 0.915,
}
"""What a picture can be recoloured to."""

GROUNDS: Final = {
    "red": (226, 60, 54),
    "orange": (245, 150, 50),
    "yellow": (252, 222, 80),
    "green": (96, 180, 92),
    "light blue": (170, 214, 245),
    "blue": (52, 110, 206),
    "purple": (140, 90, 190),
    "pink": (248, 170, 200),
    "gray": (150, 150, 152),
    "black": (20, 20, 24),
}
"""Grounds to put a picture on."""

WIDTH: Final = 0.09  # turns to each side of the main hue that are the same colour
_BINS: Final = 36
_COLOURED: Final = (0.35, 0.25)  # least saturation and value
_SHARE: Final = 0.4  # of what is drawn must have the main colour, and of its coloured part:
_SHARE_COLOURED: Final = 0.6


def main_colour(picture: Pixels) -> tuple[str, float]:
    """Name and hue of the colour that most of an RGBA picture has; ("", -1.0) where none stands out.

    Brown, white, black and gray have no hue that one could turn, so their hue is -1.
    """
    solid = picture[picture[..., 3] > 128][:, :3].astype(np.float32) / 255
    if len(solid) < 64:
        return "", -1.0
    hue, saturation, value = _hsv(torch.from_numpy(solid).T[None, :, :, None]).numpy()[0, :, :, 0]
    coloured = (saturation > _COLOURED[0]) & (value > _COLOURED[1])
    if coloured.mean() < _SHARE:
        return _without_hue(saturation, value), -1.0
    counts = np.bincount((hue[coloured] * _BINS).astype(int) % _BINS, minlength=_BINS).astype(np.float64)
    smooth = counts + np.roll(counts, 1) + np.roll(counts, -1)
    peak = (int(smooth.argmax()) + 0.5) / _BINS
    near = coloured & (np.abs((hue - peak + 0.5) % 1 - 0.5) < WIDTH)
    if near.mean() < _SHARE or near.sum() < _SHARE_COLOURED * coloured.sum():
        return "", -1.0
    if 0.02 < peak < 0.13 and np.median(value[near]) < 0.62:
        return "brown", -1.0
    name = min(HUES, key=lambda name: abs((HUES[name] - peak + 0.5) % 1 - 0.5))
    return name, peak


def _without_hue(saturation: npt.NDArray[np.float32], value: npt.NDArray[np.float32]) -> str:
    gray = saturation < 0.2
    if gray.mean() < 0.7:
        return ""
    middle = float(np.median(value[gray]))
    return "black" if middle < 0.25 else "white" if middle > 0.85 else "gray" if 0.35 < middle < 0.75 else ""


def recolour(pictures: torch.Tensor, hues: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Turns the main colour of each picture, and only it, to another.

    Args:
        pictures: [batch, 3, height, width], RGB in [0, 1].
        hues: [batch], the present main hue of each.
        targets: [batch], the wanted one.
    """
    hsv = _hsv(pictures)
    hue, saturation, value = hsv.unbind(1)
    distance = ((hue - hues[:, None, None] + 0.5) % 1 - 0.5).abs()
    turned = (distance < WIDTH) & (saturation > 0.15)
    shifted = (hue + (targets - hues)[:, None, None]) % 1
    return _rgb(torch.stack((torch.where(turned, shifted, hue), saturation, value), 1))


def _hsv(rgb: torch.Tensor) -> torch.Tensor:
    """[batch, 3, ...] to hue in turns, saturation and value (Smith 1978)."""
    red, green, blue = rgb.unbind(1)
    value, low = rgb.amax(1), rgb.amin(1)
    spread = value - low
    safe = spread.clamp(min=1e-6)
    hue = torch.where(
        value == red,
        (green - blue) / safe,
        torch.where(value == green, 2 + (blue - red) / safe, 4 + (red - green) / safe),
    )
    return torch.stack(((hue / 6) % 1, spread / value.clamp(min=1e-6), value), 1)


def _rgb(hsv: torch.Tensor) -> torch.Tensor:
    hue, saturation, value = hsv.unbind(1)
    offsets = torch.tensor((5.0, 3.0, 1.0), device=hsv.device).view(1, 3, *([1] * (hsv.ndim - 2)))
    k = (offsets + hue[:, None] * 6) % 6
    ramp = torch.minimum(k, 4 - k).clamp(0, 1)
    return value[:, None] - (value * saturation)[:, None] * ramp
