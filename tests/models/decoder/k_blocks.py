"""Plain encoders of ggml's blocks Q4_K, Q5_K and Q6_K, so that tests have models in them: every group by its own range."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgewise.models.weights.write import StoredTensor

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]


def _divided(values: Floats, by: Floats) -> Floats:
    return np.divide(values, by, out=np.zeros(np.broadcast_shapes(values.shape, by.shape), np.float32), where=by != 0)


def _halves(values: Floats) -> tuple[Bytes, Floats]:
    """[n] as float16: bytes [n, 2], and the values that they stand for."""
    halves = values.astype(np.float16)
    return halves.view(np.uint8).reshape(-1, 2), halves.astype(np.float32)


def _mixed(scales: Bytes, minima: Bytes) -> Bytes:
    """Eight scales and eight minima of 6 bits in 12 bytes."""
    first = scales[:, :4] | scales[:, 4:] >> 4 << 6
    second = minima[:, :4] | minima[:, 4:] >> 4 << 6
    return np.concatenate((first, second, scales[:, 4:] & 15 | minima[:, 4:] << 4), axis=1)


def _with_minima(values: Floats, bits: int) -> Bytes:
    groups = values.reshape(-1, 8, 32)
    least = -np.minimum(groups.min(2), 0)
    step = (np.maximum(groups.max(2), 0) + least) / (2**bits - 1)
    (d, scale), (dmin, minimum) = _halves(step.max(1) / 63), _halves(least.max(1) / 63)
    factors = np.rint(_divided(step, scale[:, None])).clip(0, 63)
    minima = np.rint(_divided(least, minimum[:, None])).clip(0, 63)
    offset, width = minimum[:, None] * minima, scale[:, None] * factors
    codes = np.rint(_divided(groups + offset[..., None], width[..., None])).clip(0, 2**bits - 1).astype(np.uint8)
    runs = codes.reshape(-1, 4, 2, 32)  # two groups share 32 bytes
    low = (runs[:, :, 0] & 15 | (runs[:, :, 1] & 15) << 4).reshape(-1, 128)
    parts = [d, dmin, _mixed(factors.astype(np.uint8), minima.astype(np.uint8))]
    if bits == 5:
        shifts = np.arange(8, dtype=np.uint8)[None, :, None]
        parts.append(np.bitwise_or.reduce((codes >> 4) << shifts, axis=1))
    return np.concatenate((*parts, low), axis=1)


def _six_bits(values: Floats) -> Bytes:
    groups = values.reshape(-1, 16, 16)
    step = np.abs(groups).max(2) / 31
    d, scale = _halves(step.max(1) / 127)
    factors = np.rint(_divided(step, scale[:, None])).clip(-127, 127)
    codes = np.rint(_divided(groups, (scale[:, None] * factors)[..., None])).clip(-32, 31)
    runs = (codes + 32).astype(np.uint8).reshape(-1, 2, 4, 32)
    low = np.concatenate(
        (runs[:, :, 0] & 15 | (runs[:, :, 2] & 15) << 4, runs[:, :, 1] & 15 | (runs[:, :, 3] & 15) << 4), axis=2
    )
    shifts = np.array([0, 2, 4, 6], dtype=np.uint8)[None, None, :, None]
    high = np.bitwise_or.reduce((runs >> 4) << shifts, axis=2)
    return np.concatenate(
        (low.reshape(-1, 128), high.reshape(-1, 64), factors.astype(np.int8).view(np.uint8), d), axis=1
    )


def encoded(tensor: StoredTensor, kind: str) -> StoredTensor:
    """A tensor stored as F32 in blocks of `kind`."""
    values = np.frombuffer(tensor.data, np.float32)
    raw = _six_bits(values) if kind == "Q6_K" else _with_minima(values, 4 if kind == "Q4_K" else 5)
    return StoredTensor(tensor.name, tensor.shape, kind, np.ascontiguousarray(raw).tobytes())
