"""Decoding of GGUF's block formats with 5-bit values and of those with 256 values to a block (K-quants, IQ4).

Layouts are those of ggml's `ggml-common.h`. A block is decoded as d * (scale * q) - m with each operation rounded to float32 in
the order of ggml's reference (d * scale first), so the results equal its bit for bit. Scratch is one byte per value besides
the result.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]

_SUPER: Final = 256  # values in a block of the K-quants
_HALVES: Final = (0, 4)
_QUARTERS: Final = (0, 2, 4, 6)
_EIGHTHS: Final = tuple(range(8))
# The 16 levels of IQ4, spaced as weights are distributed.
_LEVELS: Final = np.array((-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113), dtype=np.float32)


def f16(field: Bytes) -> Floats:
    """[n, 2] bytes of an f16 -> float32 [n, 1]."""
    return np.ascontiguousarray(field).view("<f2").astype(np.float32)


def _planes(packed: Bytes, width: int, shifts: tuple[int, ...], mask: int) -> Bytes:
    """[n, groups * width] bytes -> [n, groups * len(shifts) * width] small values: each run of `width` bytes holds
    len(shifts) runs of values, one per shift."""
    runs = packed.reshape(packed.shape[0], -1, 1, width) >> np.array(shifts, np.uint8)[:, None]
    runs &= np.uint8(mask)
    return runs.reshape(packed.shape[0], -1)


def _scaled(values: Bytes, scale: Floats, minus: Floats | None, offset: float = 0.0) -> Floats:
    """[n, v] values and [n, s] scales (and minima) of v / s values each -> [n * v]: scale * (value - offset) - minus."""
    runs = values.reshape(*scale.shape, -1).astype(np.float32)
    if offset:
        runs -= np.float32(offset)
    runs *= scale[..., None]
    if minus is not None:
        runs -= minus[..., None]
    return runs.reshape(-1)


def _fifth_bits(field: Bytes) -> Bytes:
    """[n, 4] bytes -> [n, 32] values 0 or 16."""
    bits: Bytes = np.unpackbits(field, axis=1, bitorder="little")
    bits <<= 4
    return bits


def decode_q5_0(raw: Bytes) -> Floats:
    """(d: f16, 4 bytes of fifth bits, 16 bytes of nibbles): d * (q - 16)."""
    blocks = raw.reshape(-1, 22)
    values = _planes(blocks[:, 6:], 16, _HALVES, 15) | _fifth_bits(blocks[:, 2:6])
    return _scaled(values, f16(blocks[:, :2]), None, 16.0)


def decode_q5_1(raw: Bytes) -> Floats:
    """(d: f16, m: f16, 4 bytes of fifth bits, 16 bytes of nibbles): d * q + m."""
    blocks = raw.reshape(-1, 24)
    values = _planes(blocks[:, 8:], 16, _HALVES, 15) | _fifth_bits(blocks[:, 4:8])
    return _scaled(values, f16(blocks[:, :2]), -f16(blocks[:, 2:4]))


def decode_q2_k(raw: Bytes) -> Floats:
    """(16 bytes of 4-bit scales and minima, 64 bytes of 2-bit values, d: f16, dmin: f16)."""
    blocks = raw.reshape(-1, 84)
    scale = f16(blocks[:, 80:82]) * (blocks[:, :16] & 15).astype(np.float32)
    minus = f16(blocks[:, 82:84]) * (blocks[:, :16] >> 4).astype(np.float32)
    return _scaled(_planes(blocks[:, 16:80], 32, _QUARTERS, 3), scale, minus)


def decode_q3_k(raw: Bytes) -> Floats:
    """(32 bytes of third bits, 64 bytes of 2-bit values, 12 bytes of 6-bit scales, d: f16); a third bit of 0 takes 4 off."""
    blocks = raw.reshape(-1, 110)
    values = _planes(blocks[:, 32:96], 32, _QUARTERS, 3)
    values |= _planes(blocks[:, :32], 32, _EIGHTHS, 1) << 2
    low, high = _planes(blocks[:, 96:104], 8, _HALVES, 15), _planes(blocks[:, 104:108], 4, _QUARTERS, 3)
    scale = f16(blocks[:, 108:110]) * ((low | (high << 4)).astype(np.float32) - 32.0)
    return _scaled(values, scale, None, 4.0)


def _scales_and_minima(field: Bytes) -> tuple[Floats, Floats]:
    """12 bytes with eight 6-bit scales and eight 6-bit minima -> two [n, 8]."""
    first, second, mixed = field[:, :4], field[:, 4:8], field[:, 8:12]
    scales = np.concatenate((first & 63, (mixed & 15) | ((first >> 2) & 48)), axis=1)
    minima = np.concatenate((second & 63, (mixed >> 4) | ((second >> 2) & 48)), axis=1)
    return scales.astype(np.float32), minima.astype(np.float32)


def decode_q4_k(raw: Bytes) -> Floats:
    """(d: f16, dmin: f16, 12 bytes of 6-bit scales and minima, 128 bytes of nibbles)."""
    blocks = raw.reshape(-1, 144)
    scales, minima = _scales_and_minima(blocks[:, 4:16])
    values = _planes(blocks[:, 16:], 32, _HALVES, 15)
    return _scaled(values, f16(blocks[:, :2]) * scales, f16(blocks[:, 2:4]) * minima)


def decode_q5_k(raw: Bytes) -> Floats:
    """Q4_K with 32 bytes of fifth bits before the nibbles."""
    blocks = raw.reshape(-1, 176)
    scales, minima = _scales_and_minima(blocks[:, 4:16])
    values = _planes(blocks[:, 48:], 32, _HALVES, 15)
    values |= _planes(blocks[:, 16:48], 32, _EIGHTHS, 1) << 4
    return _scaled(values, f16(blocks[:, :2]) * scales, f16(blocks[:, 2:4]) * minima)


def decode_q6_k(raw: Bytes) -> Floats:
    """(128 bytes of low nibbles, 64 bytes of high pairs of bits, 16 x i8 scales, d: f16): d * scale * (q - 32)."""
    blocks = raw.reshape(-1, 210)
    values = _planes(blocks[:, :128], 64, _HALVES, 15)
    values |= _planes(blocks[:, 128:192], 32, _QUARTERS, 3) << 4
    scale = f16(blocks[:, 208:210]) * blocks[:, 192:208].view(np.int8).astype(np.float32)
    return _scaled(values, scale, None, 32.0)


def _levelled(values: Bytes, scale: Floats) -> Floats:
    """[n, v] 4-bit codes of IQ4's levels and [n, s] scales -> [n * v]."""
    runs = _LEVELS[values].reshape(*scale.shape, -1)
    runs *= scale[..., None]
    return runs.reshape(-1)


def decode_iq4_nl(raw: Bytes) -> Floats:
    """(d: f16, 16 bytes of 4-bit codes): d * level."""
    blocks = raw.reshape(-1, 18)
    return _levelled(_planes(blocks[:, 2:], 16, _HALVES, 15), f16(blocks[:, :2]))


def decode_iq4_xs(raw: Bytes) -> Floats:
    """(d: f16, 2 bytes of high scale bits, 4 bytes of low ones, 128 bytes of 4-bit codes): d * (scale - 32) * level."""
    blocks = raw.reshape(-1, 136)
    high = _planes(blocks[:, 2:4], 1, _QUARTERS, 3)
    low = _planes(blocks[:, 4:8], 1, _HALVES, 15)
    scale = f16(blocks[:, :2]) * ((low | (high << 4)).astype(np.float32) - 32.0)
    return _levelled(_planes(blocks[:, 8:], 16, _HALVES, 15), scale)


# By the format's name: values of a block, bytes of a block, decoder.
BLOCKS: Final[dict[str, tuple[int, int, Callable[[Bytes], Floats]]]] = {
    "Q5_0": (32, 22, decode_q5_0),
    "Q5_1": (32, 24, decode_q5_1),
    "Q2_K": (_SUPER, 84, decode_q2_k),
    "Q3_K": (_SUPER, 110, decode_q3_k),
    "Q4_K": (_SUPER, 144, decode_q4_k),
    "Q5_K": (_SUPER, 176, decode_q5_k),
    "Q6_K": (_SUPER, 210, decode_q6_k),
    "IQ4_NL": (32, 18, decode_iq4_nl),
    "IQ4_XS": (_SUPER, 136, decode_iq4_xs),
}
