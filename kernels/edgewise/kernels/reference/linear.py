from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 - the name everybody uses


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, rows: int) -> torch.Tensor:
    """`rows` >= x's rows is what the product is computed with; the padding is cut off again."""
    count = x.shape[0]
    if rows == count:
        return F.linear(x.contiguous(), weight, bias)
    return F.linear(F.pad(x, (0, 0, 0, rows - count)), weight, bias)[:count]
