from __future__ import annotations

import torch

from edgewise.kernels.reference.linear import linear
from edgewise.kernels.rows import Rows


def add_low_rank(
    out: torch.Tensor, x: torch.Tensor, rows: torch.Tensor, down: torch.Tensor, up: torch.Tensor, rule: Rows
) -> None:
    """The inner values are rounded to the dtype, as PEFT rounds them."""
    out[rows] += linear(linear(x[rows], down, None, rule), up, None, rule)
