"""Gaussian noise from the counter-based generator of `kernels.philox`, many numbers at a time.

The numbers are drawn on the CPU in float64 and rounded to float32 once, so every device begins with the same noise. Element i
is a function of (seed, stream, i) alone: more of it has the same beginning.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]

_M0, _M1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_W0, _W1 = 0x9E3779B9, 0xBB67AE85
_MASK = 0xFFFFFFFF
_LOW = np.uint64(_MASK)
_SHIFT = np.uint64(32)


def philox_words(first: int, count: int, stream: int, seed: int) -> tuple[Words, Words, Words, Words]:
    """`philox4x32` of the counters (i, stream) for `first` <= i < `first + count`, as four arrays of 32-bit words in uint64."""
    index = np.arange(first, first + count, dtype=np.uint64)
    c0, c1 = index & _LOW, index >> _SHIFT
    c2 = np.full(count, stream & _MASK, np.uint64)
    c3 = np.full(count, stream >> 32, np.uint64)
    k0, k1 = seed & _MASK, seed >> 32
    for _ in range(10):
        product0, product1 = _M0 * c0, _M1 * c2
        c0, c1 = (product1 >> _SHIFT) ^ c1 ^ np.uint64(k0), product1 & _LOW
        c2, c3 = (product0 >> _SHIFT) ^ c3 ^ np.uint64(k1), product0 & _LOW
        k0, k1 = (k0 + _W0) & _MASK, (k1 + _W1) & _MASK
    return c0, c1, c2, c3


def normal(seed: int, count: int, *, stream: int = 0) -> NDArray[np.float32]:
    """Independent standard normal numbers (Box & Muller 1958).

    Args:
        seed: 0 <= seed < 2**64.
        count: How many.
        stream: 0 <= stream < 2**64; different streams of one seed are independent.

    Returns:
        [count].
    """
    c0, c1, c2, c3 = philox_words(0, -(-count // 2), stream, seed)
    # 53 random bits each; the radius takes 1 - u, which is never 0.
    u = ((c0 << np.uint64(21)) ^ (c1 >> np.uint64(11))).astype(np.float64) * 2.0**-53
    v = ((c2 << np.uint64(21)) ^ (c3 >> np.uint64(11))).astype(np.float64) * 2.0**-53
    radius, angle = np.sqrt(-2.0 * np.log1p(-u)), 2.0 * np.pi * v
    pairs = np.stack((radius * np.cos(angle), radius * np.sin(angle)), axis=1)
    return pairs.reshape(-1)[:count].astype(np.float32)
