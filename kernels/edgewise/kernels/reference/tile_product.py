from __future__ import annotations

import torch


def tile_product(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
    return torch.bmm(a, b) if out is None else torch.bmm(a, b, out=out)
