"""Low-rank additions to a product, other ones for other rows (LoRA, Hu et al. 2021; batched as in Punica, Chen et al. 2023)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from edgewise.kernels.limits import MAX_ROW_MULTIPLE
from edgewise.kernels.reference import low_rank as reference
from edgewise.kernels.rows import Rows

ROWS = Rows(MAX_ROW_MULTIPLE, tile=MAX_ROW_MULTIPLE)
"""The shapes of these products are not among those that a model's rule was measured on, so tiles keep a row's bits."""


@dataclass(frozen=True, slots=True, eq=False)
class LowRank:
    """down: [rank, in], up: [out, rank], of one dtype: stand for the matrix up @ down."""

    down: torch.Tensor
    up: torch.Tensor


def add_low_rank(out: torch.Tensor, x: torch.Tensor, groups: Sequence[tuple[torch.Tensor, LowRank]]) -> None:
    """out[rows] += (x[rows] @ down.T) @ up.T for each group; the same bits for a row whatever groups there are.

    That holds where `in`, `out` and rank are multiples of 8 (`limits.RANK_MULTIPLE`).

    Args:
        out: [rows, out], the dtype of `x`; changed.
        x: [rows, in], float32, bfloat16 or float16.
        groups: Row numbers [R] int64, none twice, and their matrices, of the dtype of `x`.

    Raises:
        ValueError: Shapes or dtypes do not agree.
    """
    if x.dim() != 2 or out.dim() != 2 or x.shape[0] != out.shape[0] or x.dtype != out.dtype:
        raise ValueError(
            f"x must be [rows, in] and out [rows, out] of one dtype, got {tuple(x.shape)}, {tuple(out.shape)}"
        )
    for rows, pair in groups:
        fits = pair.down.shape[1] == x.shape[1] and pair.up.shape == (out.shape[1], pair.down.shape[0])
        if rows.dim() != 1 or rows.dtype != torch.int64 or not fits or pair.down.dtype != x.dtype:
            raise ValueError(
                f"rows must be [R] int64 and the matrices [rank, {x.shape[1]}] and [{out.shape[1]}, rank] {x.dtype}, got "
                f"{tuple(rows.shape)} {rows.dtype}, {tuple(pair.down.shape)} and {tuple(pair.up.shape)} {pair.down.dtype}"
            )
        if rows.numel():
            reference.add_low_rank(out, x, rows, pair.down, pair.up, ROWS)
