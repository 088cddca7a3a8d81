"""What is done to a head of keys, values or queries before it is stored or used: norm, rotation, rounding to 8 bits."""

from __future__ import annotations

import triton
import triton.language as tl

from edgewise.kernels.triton.sums import sum_of_pairs

_ROUND: tl.constexpr = tl.constexpr(12582912.0)  # 1.5 * 2**23: adding it leaves no bit for a fraction


@triton.jit
def angles(
    cos: tl.tensor, sin: tl.tensor, position: tl.tensor, place: tl.tensor, rotary: tl.constexpr
) -> tuple[tl.tensor, tl.tensor]:
    """Cosine and sine [1, width] by which the dimensions `place` [1, width] of a head turn; tables [positions, rotary / 2]."""
    c, s = tl.full(place.shape, 1.0, tl.float32), tl.zeros(place.shape, dtype=tl.float32)
    if rotary > 0:
        half: tl.constexpr = rotary // 2
        at = position * half + tl.where(place < half, place, place - half)
        c = tl.load(cos + at, mask=place < rotary, other=1.0)
        s = tl.load(sin + at, mask=place < rotary, other=0.0)
        s = tl.where(place < half, -s, s)
    return c, s


@triton.jit
def turned_head(
    x: tl.tensor,
    place: tl.tensor,
    mask: tl.tensor,
    norm: tl.tensor,
    c: tl.tensor,
    s: tl.tensor,
    eps: tl.tensor,
    head_dim: tl.constexpr,
    rotary: tl.constexpr,
    normed: tl.constexpr,
) -> tl.tensor:
    """Heads [n, width] float32, from pointers `x`, `norm` [n, 1] to their first values; c, s are their `angles`.

    Rotation as `kernels.rope`: products and sum are rounded one by one (kernels are compiled without `enable_fp_fusion`).
    """
    value = tl.load(x + place, mask=mask & (place < head_dim), other=0.0).to(tl.float32)
    if rotary > 0:
        half: tl.constexpr = rotary // 2
        partner = tl.where(place < half, place + half, place - half)
        other = tl.load(x + partner, mask=mask & (place < rotary), other=0.0).to(tl.float32)
    if normed:
        inverse = 1.0 / tl.sqrt(sum_of_pairs(value * value, value.shape[0]) / head_dim + eps)[:, None]
        value = value * inverse * tl.load(norm + place, mask=mask & (place < head_dim), other=0.0)
        if rotary > 0:
            other = other * inverse * tl.load(norm + partner, mask=mask & (place < rotary), other=0.0)
    if rotary > 0:
        value = value * c + other * s
    return value


@triton.jit
def rounded_head(x: tl.tensor, stored: tl.constexpr) -> tuple[tl.tensor, tl.tensor]:
    """x [n, width] float32 -> values as `kernels.kv_write` stores them, in float32, and scales [n].

    Of formats with 16 or 32 bits the values are those of the format, and the scales 1.
    """
    value, scale = x, tl.sum(x - x, axis=1)  # NaN where x is not finite: a maximum would not show it
    if stored == tl.int8 or stored == tl.float8e4nv:
        most: tl.constexpr = 127.0 if stored == tl.int8 else 448.0
        scale += tl.div_rn(tl.max(tl.abs(x), axis=1), tl.full(scale.shape, most, tl.float32))
        value = tl.div_rn(x, tl.broadcast_to(tl.where(scale == 0.0, 1.0, scale)[:, None], x.shape))
        value = tl.where(value == value, tl.minimum(tl.maximum(value, -most), most), 0.0)
        if stored == tl.int8:  # noqa: SIM108 - the compiler must not see the other branch
            value = (value + _ROUND) - _ROUND
        else:
            value = value.to(stored, fp_downcast_rounding="rtne").to(tl.float32)
    else:
        value, scale = value.to(stored).to(tl.float32), tl.full(scale.shape, 1.0, tl.float32)
    return value, scale
