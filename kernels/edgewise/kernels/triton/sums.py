"""Sums whose order of additions is written out: neither the sizes of blocks nor the rows beside a row change a bit of them."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def sums_of_16(x: tl.tensor, groups: tl.constexpr, rows: tl.constexpr) -> tl.tensor:
    """[groups * 16, rows] -> [groups, rows], added in pairs of neighbours."""
    x = tl.sum(tl.reshape(x, (groups * 8, 2, rows)), axis=1)
    x = tl.sum(tl.reshape(x, (groups * 4, 2, rows)), axis=1)
    x = tl.sum(tl.reshape(x, (groups * 2, 2, rows)), axis=1)
    return tl.sum(tl.reshape(x, (groups, 2, rows)), axis=1)


@triton.jit
def sum_of_pairs(x: tl.tensor, rows: tl.constexpr) -> tl.tensor:
    """[rows, a power of two] -> [rows], added in pairs of neighbours.

    How `tl.sum` adds a row depends on how many rows there are beside it: threads are dealt to the whole block.
    """
    for _ in tl.static_range(16):
        if x.shape[1] > 1:
            x = tl.sum(tl.reshape(x, (rows, x.shape[1] // 2, 2)), axis=2)
    return tl.reshape(x, (rows,))


@triton.jit
def squares_of(squares: tl.tensor, row: tl.tensor, rows: tl.tensor, count: tl.constexpr) -> tl.tensor:
    """[block_rows, count rounded up to a power of two]: the sums of 16 squares of each row."""
    at = tl.arange(0, triton.next_power_of_2(count))
    mask = (row < rows)[:, None] & (at < count)[None, :]
    return tl.load(squares + row[:, None] * count + at[None, :], mask=mask, other=0.0)
