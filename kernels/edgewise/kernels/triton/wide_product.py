"""The products of `decode_product` for more rows, where reading activations costs as much as reading the weight.

The same four chains of matrix instructions as there, all in one program, so that it can have 64 outputs (128 of a gated product)
for one reading of the activations. A row's bits are those of the other kernel (tests.bench.gpu compares them on a card).
"""

from __future__ import annotations

import triton
import triton.language as tl

from edgewise.kernels.triton.launch import dot


@triton.jit
def _factors(a: tl.tensor, row: tl.tensor, rows: tl.tensor, first: tl.tensor, inner: tl.constexpr) -> tl.tensor:
    at = first + tl.arange(0, 64)
    mask = (row < rows)[:, None] & (at < inner)[None, :]
    return tl.trans(tl.load(a + row[:, None] * inner + at[None, :], mask=mask, other=0.0))


@triton.jit
def _codes(codes: tl.tensor, line: tl.tensor, real: tl.tensor, first: tl.tensor, inner: tl.constexpr) -> tl.tensor:
    at = first + tl.arange(0, 64)
    return tl.load(codes + line + at[None, :], mask=real & (at < inner)[None, :], other=0.0)


@triton.jit
def wide_chains(
    a: tl.tensor,
    codes: tl.tensor,
    row: tl.tensor,
    rows: tl.tensor,
    column: tl.tensor,
    columns: tl.constexpr,
    inner: tl.constexpr,
    gated: tl.constexpr,
    block_rows: tl.constexpr,
    block_columns: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """Sums [block_columns, block_rows] of gate and up, or of a plain product twice."""
    c0 = tl.zeros((block_columns, block_rows), dtype=tl.float32)
    c1, c2, c3 = c0, c0, c0
    u0, u1, u2, u3 = c0, c0, c0, c0
    line = column.to(tl.int64)[:, None] * inner
    real = (column < columns)[:, None]
    for first in range(0, inner, 256):
        x0 = _factors(a, row, rows, first, inner)
        x1 = _factors(a, row, rows, first + 64, inner)
        x2 = _factors(a, row, rows, first + 128, inner)
        x3 = _factors(a, row, rows, first + 192, inner)
        c0 = dot(_codes(codes, line, real, first, inner), x0, c0)
        c1 = dot(_codes(codes, line, real, first + 64, inner), x1, c1)
        c2 = dot(_codes(codes, line, real, first + 128, inner), x2, c2)
        c3 = dot(_codes(codes, line, real, first + 192, inner), x3, c3)
        if gated:
            up = line + columns * inner
            u0 = dot(_codes(codes, up, real, first, inner), x0, u0)
            u1 = dot(_codes(codes, up, real, first + 64, inner), x1, u1)
            u2 = dot(_codes(codes, up, real, first + 128, inner), x2, u2)
            u3 = dot(_codes(codes, up, real, first + 192, inner), x3, u3)
    return (c0 + c1) + (c2 + c3), (u0 + u1) + (u2 + u3)
