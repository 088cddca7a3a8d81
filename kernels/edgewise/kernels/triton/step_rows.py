"""The bookkeeping of a decoding step: where its tokens are written, and the rows' way to the next one."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from edgewise.kernels.limits import PAGE_TOKENS

_BLOCK = 64


@triton.jit(do_not_specialize=["rows", "width"])
def _slots(
    positions: tl.tensor,
    table: tl.tensor,
    slots: tl.tensor,
    rows: tl.tensor,
    width: tl.tensor,
    page_tokens: tl.constexpr,
    block: tl.constexpr,
) -> None:
    row = tl.program_id(0) * block + tl.arange(0, block)
    real = row < rows
    position = tl.load(positions + row, mask=real, other=-1)
    used = position >= 0
    page = tl.load(table + row.to(tl.int64) * width + position // page_tokens, mask=used, other=0).to(tl.int64)
    tl.store(slots + row, tl.where(used, page * page_tokens + position % page_tokens, -1), mask=real)


@triton.jit(do_not_specialize=["rows"])
def _move_on(positions: tl.tensor, places: tl.tensor, rows: tl.tensor, block: tl.constexpr) -> None:
    row = tl.program_id(0) * block + tl.arange(0, block)
    position = tl.load(positions + row, mask=row < rows, other=-1)
    used = position >= 0
    place = tl.load(places + row, mask=used, other=0)
    tl.store(positions + row, position + 1, mask=used)
    tl.store(places + row, place + 1, mask=used)


def slots_of(positions: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """Slots of tokens, page * PAGE_TOKENS + offset.

    Args:
        positions: [rows] int64; -1 in rows of padding, whose slot is -1.
        table: [rows, pages] int32, contiguous.

    Raises:
        ValueError: Shapes do not agree.
    """
    rows, width = table.shape
    if positions.shape != (rows,) or not table.is_contiguous():
        raise ValueError(f"positions must be [{rows}] and table contiguous, got {tuple(positions.shape)}")
    out = torch.empty_like(positions)
    _slots[(triton.cdiv(rows, _BLOCK),)](positions, table, out, rows, width, PAGE_TOKENS, _BLOCK, num_warps=2)
    return out


def move_on(positions: torch.Tensor, places: torch.Tensor) -> None:
    """Add 1 to both, except in rows whose position is negative; [rows] int64.

    Raises:
        ValueError: Shapes do not agree.
    """
    if positions.shape != places.shape or positions.dim() != 1:
        raise ValueError(f"positions and places must be [rows], got {tuple(positions.shape)} and {tuple(places.shape)}")
    rows = positions.shape[0]
    _move_on[(triton.cdiv(rows, _BLOCK),)](positions, places, rows, _BLOCK, num_warps=2)
