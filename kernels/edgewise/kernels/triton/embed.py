"""The beginning of a decoding step: rows of the embedding table, as the first product takes them."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from edgewise.kernels.triton.decode_product import SQUARES, Residual
from edgewise.kernels.triton.sums import sums_of_16


@triton.jit
def leave_row(
    value: tl.tensor,
    x: tl.tensor,
    scaled: tl.tensor,
    squares: tl.tensor,
    norm: tl.tensor,
    row: tl.tensor,
    first: tl.tensor,
    hidden: tl.constexpr,
    block: tl.constexpr,
) -> None:
    """Store a row of the residual stream, `block` elements from `first` on, and what the next product needs of them."""
    place = first + tl.arange(0, block)
    real = place < hidden
    tl.store(x + row * hidden + place, value, mask=real)
    tl.store(scaled + row * hidden + place, value * tl.load(norm + place, mask=real, other=0.0), mask=real)
    groups: tl.constexpr = block // 16
    sums = tl.reshape(sums_of_16(tl.reshape(value * value, (block, 1)), groups, 1), (groups,))
    group = first // 16 + tl.arange(0, groups)
    tl.store(squares + row * (hidden // 16) + group, sums, mask=group < hidden // 16)


@triton.jit
def _embed(
    tokens: tl.tensor,
    table: tl.tensor,
    norm: tl.tensor,
    x: tl.tensor,
    scaled: tl.tensor,
    squares: tl.tensor,
    factor: tl.tensor,
    hidden: tl.constexpr,
    block: tl.constexpr,
) -> None:
    """Grid (rows, blocks of a row)."""
    row = tl.program_id(0).to(tl.int64)
    first = tl.program_id(1) * block
    place = first + tl.arange(0, block)
    real = place < hidden
    token = tl.maximum(tl.load(tokens + row), 0)
    value = tl.load(table + token * hidden + place, mask=real, other=0.0).to(tl.float32) * factor
    leave_row(value, x, scaled, squares, norm, row, first, hidden, block)


def embed(tokens: torch.Tensor, table: torch.Tensor, norm: torch.Tensor, r: Residual, scale: float = 1.0) -> None:
    """Fill the residual stream with rows of the table times `scale`, and with what the first norm needs.

    Args:
        tokens: [rows] int64, each in [0, vocab); -1 counts as 0.
        table: [vocab, hidden], the weights' dtype.
        norm: [hidden] float32, weight of the first norm.
        r: The stream; overwritten.

    Raises:
        ValueError: Shapes do not agree, or hidden is no multiple of 16.
    """
    rows, hidden = r.x.shape
    if tokens.shape != (rows,) or table.shape[1:] != (hidden,) or norm.shape != (hidden,) or hidden % SQUARES:
        raise ValueError(f"tokens must be [{rows}], table [vocab, {hidden}], norm [{hidden}], hidden a multiple of 16")
    block = min(1024, triton.next_power_of_2(hidden))
    _embed[(rows, triton.cdiv(hidden, block))](
        tokens, table, norm, r.x, r.scaled, r.squares, scale, hidden, block, num_warps=4
    )
