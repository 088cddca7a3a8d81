"""Activations rounded to fp8 (e4m3) row by row, and products of many rows with weights in fp8.

A program of the product computes a tile of fixed size over the whole inner dimension, so a row's bits are its own. Hopper's fp8
instructions add in fewer bits than float32 has; their sums are added up in float32 after every step of the inner dimension.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from edgewise.kernels.triton.launch import INTERPRETED, begin, shared_memory
from edgewise.kernels.triton.narrow import to_e4m3

_ROUNDED = 2048  # columns that a program rounds at a time
_COLUMNS, _INNER = 128, 128  # of a tile
_TOGETHER = 8  # blocks of rows that are computed before the next
_ROOM = 128 << 10  # bytes of shared memory from which on steps are loaded three deep; that changes no bit
_NUMPY: tl.constexpr = tl.constexpr(INTERPRETED)
_MOST: tl.constexpr = tl.constexpr(448.0)
_LEAST: tl.constexpr = tl.constexpr(2.0**-119)


@triton.jit
def _round(
    a: tl.tensor,
    codes: tl.tensor,
    steps: tl.tensor,
    inner: tl.constexpr,
    block: tl.constexpr,
    overlapped: tl.constexpr,
) -> None:
    """Grid (rows,)."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, block)
    begin(overlapped)
    most = tl.zeros((block,), dtype=tl.float32)
    poison = tl.zeros((block,), dtype=tl.float32)
    for first in range(0, inner, block):
        x = tl.load(a + row * inner + first + at, mask=first + at < inner, other=0.0).to(tl.float32)
        most = tl.maximum(most, tl.abs(x))
        poison += x - x  # NaN where a value is not finite
    largest = tl.max(most, axis=0)
    wrong = tl.sum(poison, axis=0)
    some = (largest >= _LEAST) & (wrong == 0.0)
    safe = tl.where(some, largest, 1.0)
    inverse = tl.where(some, tl.div_rn(_MOST, safe), 0.0)
    tl.store(steps + row, tl.where(some, tl.div_rn(safe, _MOST), 0.0) + wrong)
    for first in range(0, inner, block):
        mask = first + at < inner
        x = tl.load(a + row * inner + first + at, mask=mask, other=0.0).to(tl.float32)
        scaled = tl.where(some, x, 0.0) * inverse
        scaled = tl.minimum(tl.maximum(scaled, -_MOST), _MOST)
        tl.store(codes + row * inner + first + at, to_e4m3(scaled), mask=mask)


def round_rows(x: torch.Tensor, *, overlapped: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """`kernels.fp8_linear.round_rows` of x [rows, columns] of floats, with the same bits."""
    x = x.contiguous()
    rows, columns = x.shape
    codes = torch.empty((rows, columns), dtype=torch.float8_e4m3fn, device=x.device)
    steps = torch.empty(rows, device=x.device)
    _round[(rows,)](
        x, codes, steps, columns, min(_ROUNDED, triton.next_power_of_2(columns)), overlapped, num_warps=8,
        enable_fp_fusion=False, **({"launch_pdl": True} if overlapped else {}),
    )  # fmt: skip
    return codes, steps


@triton.jit
def _sum(a: tl.tensor, w: tl.tensor, total: tl.tensor, inner: tl.constexpr) -> tl.tensor:
    """total + a @ w, codes as they are; at most `inner` products are added in fewer bits than float32 has."""
    if _NUMPY:
        return tl.dot(a.to(tl.float32), w.to(tl.float32), total, input_precision="ieee")
    return tl.dot(a, w, total, max_num_imprecise_acc=inner)


@triton.jit
def native_sums(
    a: tl.tensor,
    codes: tl.tensor,
    row: tl.tensor,
    rows: tl.tensor,
    column: tl.tensor,
    columns: tl.constexpr,
    matrix_rows: tl.constexpr,
    inner: tl.constexpr,
    gated: tl.constexpr,
    block_rows: tl.constexpr,
    block_columns: tl.constexpr,
    block_inner: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """For `decode_product`: sums [block_columns, block_rows] of gate and up, or of a product and zeros, by fp8 instructions."""
    total = tl.zeros((block_columns, block_rows), dtype=tl.float32)
    up = tl.zeros((block_columns, block_rows), dtype=tl.float32)
    at = tl.arange(0, block_inner)
    line = column.to(tl.int64)[:, None] * inner
    for first in range(0, inner, block_inner):
        inside = (first + at < inner)[None, :]
        x = tl.load(a + row[:, None] * inner + first + at[None, :], mask=(row < rows)[:, None] & inside, other=0.0)
        w = tl.load(codes + line + first + at[None, :], mask=(column < columns)[:, None] & inside, other=0.0)
        total = _sum(w, tl.trans(x), total, block_inner)
        if gated:
            real = (column + columns < matrix_rows)[:, None] & inside
            v = tl.load(codes + line + columns * inner + first + at[None, :], mask=real, other=0.0)
            up = _sum(v, tl.trans(x), up, block_inner)
    return total, up


@triton.jit(do_not_specialize=["rows"])
def _tiles(
    a: tl.tensor,
    steps: tl.tensor,
    codes: tl.tensor,
    scales: tl.tensor,
    bias: tl.tensor,
    out: tl.tensor,
    rows: tl.tensor,
    columns: tl.constexpr,
    inner: tl.constexpr,
    biased: tl.constexpr,
    block_rows: tl.constexpr,
    block_columns: tl.constexpr,
    block_inner: tl.constexpr,
    together: tl.constexpr,
) -> None:
    """Grid (tiles,): column by column for `together` blocks of rows, then for the next, so that operands stay in the cache."""
    across: tl.constexpr = (columns + block_columns - 1) // block_columns
    first_block = tl.program_id(0) // (together * across) * together
    number = tl.program_id(0) % (together * across)
    height = tl.minimum(tl.cdiv(rows, block_rows) - first_block, together)
    row = (first_block + number % height) * block_rows + tl.arange(0, block_rows)
    column = number // height * block_columns + tl.arange(0, block_columns)
    real_row, real = row < rows, column < columns
    at = tl.arange(0, block_inner)
    line, other = row.to(tl.int64)[:, None] * inner, column.to(tl.int64)[:, None] * inner
    total = tl.zeros((block_rows, block_columns), dtype=tl.float32)
    for first in range(0, inner, block_inner):
        inside = (first + at < inner)[None, :]
        x = tl.load(a + line + first + at[None, :], mask=real_row[:, None] & inside, other=0.0)
        w = tl.load(codes + other + first + at[None, :], mask=real[:, None] & inside, other=0.0)
        total = _sum(x, tl.trans(w), total, block_inner)
    step = tl.load(steps + row, mask=real_row, other=0.0)[:, None]
    total *= tl.load(scales + column, mask=real, other=0.0)[None, :] * step
    if biased:
        total += tl.load(bias + column, mask=real, other=0.0).to(tl.float32)[None, :]
    target = row.to(tl.int64)[:, None] * columns + column[None, :]
    tl.store(out + target, total.to(out.dtype.element_ty), mask=real_row[:, None] & real[None, :])


def long_product(
    own: torch.Tensor,
    step: torch.Tensor,
    codes: torch.Tensor,
    scale: torch.Tensor,
    bias: torch.Tensor | None,
    dtype: torch.dtype,
    tile_rows: int,
) -> torch.Tensor:
    """own @ codes.T, scaled, plus bias: [rows, out] in `dtype`; operands as `kernels.fp8_linear` checks them."""
    rows, inner = own.shape
    columns = codes.shape[0]
    stages = 3 if shared_memory(own.device) >= _ROOM else 2
    out = torch.empty((rows, columns), dtype=dtype, device=own.device)
    _tiles[(triton.cdiv(rows, tile_rows) * triton.cdiv(columns, _COLUMNS),)](
        own, step, codes, scale, scale if bias is None else bias, out, rows, columns, inner, bias is not None,
        tile_rows, _COLUMNS, _INNER, _TOGETHER, num_warps=8, num_stages=stages, enable_fp_fusion=False,
    )  # fmt: skip
    return out
