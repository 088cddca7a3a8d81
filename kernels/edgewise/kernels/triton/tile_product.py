"""Batched product by programs of one shape: 16 rows x 64 columns, the inner dimension in steps of 32 from first to last.

A row's bits depend on that row and on `b` alone. Each program computes its rows in the same order; neither the batch nor
the number of rows reaches the compiler (`do_not_specialize`; sizes and strides that do are the caller's K and N, and
pointers are always aligned), so there is one binary for a pair of K and N. "ieee" keeps float32 out of tensor cores, which
would round factors to ten bits.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

_ROWS, _COLUMNS, _INNER = 16, 64, 32
_WARPS, _STAGES = 4, 2
_ALIGNMENT = 16  # bytes


@triton.jit(do_not_specialize=["rows"])
def _program(
    a: tl.tensor,
    b: tl.tensor,
    out: tl.tensor,
    rows: tl.tensor,
    inner: tl.constexpr,
    columns: tl.constexpr,
    b_step: tl.constexpr,
    b_column_step: tl.constexpr,
    block_rows: tl.constexpr,
    block_columns: tl.constexpr,
    block_inner: tl.constexpr,
) -> None:
    """a [batch, rows, inner] and out [batch, rows, columns] contiguous, b [batch, inner, columns] with the given steps."""
    row_blocks = (rows + block_rows - 1) // block_rows
    batch = (tl.program_id(0) // row_blocks).to(tl.int64)
    row = tl.program_id(0) % row_blocks * block_rows + tl.arange(0, block_rows)
    column = tl.program_id(1) * block_columns + tl.arange(0, block_columns)
    step = tl.arange(0, block_inner)
    real_row, real_column = row < rows, column < columns
    a_row = a + (batch * rows + row)[:, None] * inner
    b_column = b + batch * (inner * columns) + column[None, :] * b_column_step
    total = tl.zeros((block_rows, block_columns), dtype=tl.float32)
    for first in range(0, inner, block_inner):
        at = first + step
        left = tl.load(a_row + at[None, :], mask=real_row[:, None] & (at < inner)[None, :], other=0.0)
        right = tl.load(b_column + at[:, None] * b_step, mask=(at < inner)[:, None] & real_column[None, :], other=0.0)
        total = tl.dot(left, right, total, input_precision="ieee")
    target = out + (batch * rows + row)[:, None] * columns + column[None, :]
    tl.store(target, total, mask=real_row[:, None] & real_column[None, :])


def tile_product(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
    batch, rows, inner = a.shape
    columns = b.shape[2]
    a = _aligned(a.contiguous())
    transposed = b.transpose(1, 2).is_contiguous() and not b.is_contiguous()
    b = _aligned(b.transpose(1, 2)).transpose(1, 2) if transposed else _aligned(b.contiguous())
    usable = out is not None and out.is_contiguous() and out.data_ptr() % _ALIGNMENT == 0
    result = out if out is not None and usable else torch.empty((batch, rows, columns), device=a.device)
    if result.numel():
        grid = (batch * triton.cdiv(rows, _ROWS), triton.cdiv(columns, _COLUMNS))
        steps = (1, inner) if transposed else (columns, 1)
        with torch.cuda.device(a.get_device()):
            _program[grid](
                a,
                b,
                result,
                rows,
                inner,
                columns,
                *steps,
                _ROWS,
                _COLUMNS,
                _INNER,
                num_warps=_WARPS,
                num_stages=_STAGES,
            )
    return result if out is None or usable else out.copy_(result)


def _aligned(x: torch.Tensor) -> torch.Tensor:
    """A contiguous tensor, copied if it begins at an odd address: the compiler makes other code for those."""
    return x if x.data_ptr() % _ALIGNMENT == 0 else x.clone()
