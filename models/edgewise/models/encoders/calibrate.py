"""What 8-bit activations need to know beforehand: how large each input of each group of products is on real sentences.

A few channels of an encoder's activations are much larger than the others, and one scale for all loses the small ones. They are
evened out as SmoothQuant does (Xiao et al. 2023): each channel is divided by a factor that its weights are multiplied by.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from edgewise.models.encoders.weights import Array

_SHARES: Final = (0.5, 0.65, 0.8, 0.9)
"""SmoothQuant's alpha: how much of an outlier moves into the weights; tried for each group."""
_JUDGED: Final = 256
"""Tokens on which the error is computed; the range is that of all."""
_TINY: Final = 1e-6


@dataclass(frozen=True, slots=True)
class Calibration:
    """Of one group, whose products share an input.

    Attributes:
        smooth: [in], what the input is divided by and the weights are multiplied by.
        scale, zero: Of the input's 8-bit form: `value = (stored - zero) * scale`.
        shifts: For each product [out], what the rounding of the inputs adds on average; taken off its bias.
    """

    smooth: Array
    scale: np.float32
    zero: np.uint8
    shifts: tuple[Array, ...]


def calibrate(inputs: Array, weights: Sequence[Array]) -> Calibration:
    """The calibration with the smallest error of the products.

    Args:
        inputs: [tokens, in] on real sentences.
        weights: [in, out] of each product.
    """
    tried = [_with_share(inputs, weights, share) for share in _SHARES]
    return min(tried, key=lambda it: it[1])[0]


def _with_share(inputs: Array, weights: Sequence[Array], share: float) -> tuple[Calibration, float]:
    largest = np.abs(inputs).max(axis=0) + _TINY
    across = np.max([np.abs(weight).max(axis=1) for weight in weights], axis=0) + _TINY
    smooth = (largest**share / across ** (1 - share)).astype(np.float32)
    evened = inputs / smooth
    low, high = min(float(evened.min()), 0.0), max(float(evened.max()), 0.0)
    scale = np.float32(max(high - low, _TINY) / 255)
    zero = np.uint8(round(-low / float(scale)))
    step = -(-len(inputs) // _JUDGED)
    inputs, evened = inputs[::step], evened[::step]
    rounded = (np.clip(np.round(evened / scale) + zero, 0, 255) - np.float32(zero)) * scale
    shifts, error = [], 0.0
    for weight in weights:
        stored, scales = by_column(weight * smooth[:, None])
        exact = inputs @ weight
        lost = rounded @ (stored * scales) - exact
        shifts.append(lost.mean(axis=0).astype(np.float32))
        error += float(np.square(lost).sum() / max(np.square(exact).sum(), _TINY))
    return Calibration(smooth, scale, zero, tuple(shifts)), error


def by_column(weight: Array) -> tuple[np.typing.NDArray[np.int8], Array]:
    """[in, out] as 8 bits with one scale for each column."""
    scales = (np.maximum(np.abs(weight).max(axis=0), _TINY * _TINY) / 127).astype(np.float32)
    return np.clip(np.round(weight / scales), -127, 127).astype(np.int8), scales


def by_block(weight: Array, block: int) -> tuple[np.typing.NDArray[np.uint8], Array]:
    """[in, out] as MatMulNBits stores it: [out, blocks, block] 8 bits about 128, and a scale for each block [out, blocks].

    `block` divides the number of rows.
    """
    parts = np.ascontiguousarray(weight.T).reshape(weight.shape[1], -1, block)
    scales = (np.maximum(np.abs(parts).max(axis=2), _TINY * _TINY) / 127).astype(np.float32)
    return np.clip(np.round(parts / scales[..., None]) + 128, 1, 255).astype(np.uint8), scales
