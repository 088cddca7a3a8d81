"""Chains of matrix instructions over a weight of floats or of rounded numbers: the body of products of few rows.

The inner dimension is dealt in runs to slices, whose chains run abreast; each output is one chain a slice, sixteen elements a
link, and their sum, whatever the block sizes. Whose rows and which matrix is the caller's business: `row` holds any row numbers,
those from `rows` on stand for none, and pointers begin where the caller's matrix does.
"""

from __future__ import annotations

import triton
import triton.language as tl

from edgewise.kernels.triton.launch import dot
from edgewise.kernels.triton.narrow import halves, nibbles, singles


@triton.jit
def _spread(
    scale: tl.tensor, slices: tl.constexpr, rows: tl.constexpr, groups: tl.constexpr, each: tl.constexpr
) -> tl.tensor:
    """[slices, rows, groups] -> [slices, rows, groups * each], every entry `each` times."""
    wide = tl.broadcast_to(tl.expand_dims(scale, 3), (slices, rows, groups, each))
    return tl.reshape(wide, (slices, rows, groups * each))


@triton.jit
def places(first: tl.tensor, part: tl.constexpr, slices: tl.constexpr, run: tl.constexpr) -> tl.tensor:
    """[slices, part]: the inner elements from `first` on, dealt in runs."""
    at, own = tl.arange(0, part)[None, :], tl.arange(0, slices)[:, None]
    return first + (at // run * slices + own) * run + at % run


@triton.jit
def stored_codes(
    codes: tl.tensor, column: tl.tensor, columns: tl.constexpr, at: tl.tensor, inner: tl.constexpr
) -> tl.tensor:
    """[slices, columns, elements] for `at` [slices, elements]."""
    mask = (column < columns)[None, :, None] & (at < inner)[:, None, :]
    return tl.load(codes + column.to(tl.int64)[None, :, None] * inner + at[:, None, :], mask=mask, other=0.0)


@triton.jit
def activations(a: tl.tensor, row: tl.tensor, at: tl.tensor, rows: tl.tensor, inner: tl.constexpr) -> tl.tensor:
    """[slices, elements, rows] for `at` [slices, elements]."""
    mask = (row < rows)[None, :, None] & (at < inner)[:, None, :]
    return tl.permute(tl.load(a + row[None, :, None] * inner + at[:, None, :], mask=mask, other=0.0), (0, 2, 1))


@triton.jit
def _add_step(
    total: tl.tensor,
    a: tl.tensor,
    codes: tl.tensor,
    scales: tl.tensor,
    minima: tl.tensor,
    row: tl.tensor,
    rows: tl.tensor,
    column: tl.tensor,
    columns: tl.constexpr,
    first: tl.tensor,
    inner: tl.constexpr,
    part: tl.constexpr,
    slices: tl.constexpr,
    run: tl.constexpr,
    block_columns: tl.constexpr,
    written_out: tl.constexpr,
) -> tl.tensor:
    """total [slices, block_columns, block_rows] plus one step of the inner dimension, of `part` elements in each slice."""
    narrow: tl.constexpr = a.dtype.element_ty == tl.float8e4nv
    dtype: tl.constexpr = tl.float16 if narrow else a.dtype.element_ty  # float16 holds all numbers of fp8
    stored: tl.constexpr = codes.dtype.element_ty
    real = (column < columns)[None, :, None]
    wide = column.to(tl.int64)[None, :, None]
    own = tl.arange(0, slices)[:, None]
    if stored == tl.int8 or stored == tl.uint8:
        group = tl.arange(0, part // 32)[None, :]
        group = first // 32 + (group // (run // 32) * slices + own) * (run // 32) + group % (run // 32)
        group_at = wide * (inner // 32) + group[:, None, :]
        group_mask = real & (group < inner // 32)[:, None, :]
        scale = tl.load(scales + group_at, mask=group_mask, other=0.0).to(tl.float32)
    if stored == tl.uint8:
        byte = tl.arange(0, part // 2)[None, :]
        byte = first // 2 + (byte // (run // 2) * slices + own) * (run // 2) + byte % (run // 2)
        mask = real & (byte < inner // 2)[:, None, :]
        code = tl.load(codes + wide * (inner // 2) + byte[:, None, :], mask=mask, other=0)
        least = tl.load(minima + group_at, mask=group_mask, other=0.0).to(tl.float32)
        scale = _spread(scale, slices, block_columns, part // 32, 16)
        least = _spread(least, slices, block_columns, part // 32, 16)
        # What the compiler does not find out: sixteen that follow one another, from a multiple of sixteen on.
        at = tl.max_contiguous(tl.multiple_of(byte // 16 * 32 + byte % 16, (1, 16)), (1, 16))
        above = tl.max_contiguous(tl.multiple_of(at + 16, (1, 16)), (1, 16))
        low = nibbles(code, scale, least, False, dtype, written_out)
        high = nibbles(code, scale, least, True, dtype, written_out)
        total = dot(low, activations(a, row, at, rows, inner), total)
        total = dot(high, activations(a, row, above, rows, inner), total)
    else:
        at = places(first, part, slices, run)
        code = stored_codes(codes, column, columns, at, inner)
        if stored == tl.int8:
            code = singles(code, written_out) * _spread(scale, slices, block_columns, part // 32, 32)
        elif stored == tl.float8e4nv:
            code = halves(code, written_out)
        total = dot(code.to(dtype), activations(a, row, at, rows, inner).to(dtype), total)
    return total


@triton.jit
def float_chains(
    a: tl.tensor,
    codes: tl.tensor,
    scales: tl.tensor,
    minima: tl.tensor,
    row: tl.tensor,
    rows: tl.tensor,
    column: tl.tensor,
    columns: tl.constexpr,
    matrix_rows: tl.constexpr,
    inner: tl.constexpr,
    looped: tl.constexpr,
    gated: tl.constexpr,
    block_rows: tl.constexpr,
    block_columns: tl.constexpr,
    block_inner: tl.constexpr,
    slices: tl.constexpr,
    run: tl.constexpr,
    written_out: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """Sums [slices, block_columns, block_rows] over the first `looped` inner elements: of gate and up, or of one product."""
    part: tl.constexpr = block_inner // slices
    total = tl.zeros((slices, block_columns, block_rows), dtype=tl.float32)
    up = tl.zeros((slices, block_columns, block_rows), dtype=tl.float32)
    for first in range(0, looped, block_inner):
        total = _add_step(
            total, a, codes, scales, minima, row, rows, column, columns, first, inner, part, slices, run, block_columns,
            written_out,
        )  # fmt: skip
        if gated:
            up = _add_step(
                up, a, codes, scales, minima, row, rows, column + columns, matrix_rows, first, inner, part, slices, run,
                block_columns, written_out,
            )  # fmt: skip
    return total, up


@triton.jit
def joined(x: tl.tensor, columns: tl.constexpr, rows: tl.constexpr) -> tl.tensor:
    """The sum of four slices, (0 + 1) + (2 + 3)."""
    return tl.sum(tl.sum(tl.reshape(x, (2, 2, columns, rows)), axis=1), axis=0)
