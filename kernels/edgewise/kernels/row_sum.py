"""Sums over the last dimension, the same for a row however many rows are summed beside it."""

from __future__ import annotations

import torch

from edgewise.kernels.compiled import compiled
from edgewise.kernels.reference import row_sum as reference


def row_sum(x: torch.Tensor) -> torch.Tensor:
    """The sum of each row.

    On CUDA torch spreads a row over more threads when there are few rows, and adds in another order; so one program
    of fixed shape sums each row there (`kernels.triton.row_sum`).

    Args:
        x: [..., columns] float32.

    Returns:
        [...] float32.

    Raises:
        ValueError: Another dtype or no dimension.
    """
    if x.dtype != torch.float32 or x.dim() < 1:
        raise ValueError(f"x must be [..., columns] float32, got {tuple(x.shape)} {x.dtype}")
    if compiled(x.device):
        from edgewise.kernels.triton import row_sum as kernel

        return kernel.row_sum(x)
    return reference.row_sum(x)
