from __future__ import annotations

from collections.abc import Callable

import torch

from edgewise.kernels.reference.linear import linear
from edgewise.kernels.row_sum import row_sum
from edgewise.kernels.rows import Rows


def route(logits: torch.Tensor, per_token: int, normalised: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """A stable sort, since `topk` leaves open which of equal values it takes."""
    sorted_, order = logits.float().softmax(dim=-1).sort(dim=-1, descending=True, stable=True)
    weights = sorted_[:, :per_token]
    if normalised:
        weights = weights / row_sum(weights).unsqueeze(-1)
    return order[:, :per_token].contiguous(), weights.contiguous()


def mix(
    x: torch.Tensor,
    chosen: torch.Tensor,
    weights: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    activation: Callable[[torch.Tensor], torch.Tensor],
    rows: Rows,
) -> torch.Tensor:
    out = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    flat, shares = chosen.flatten(), weights.flatten()
    order = flat.argsort(stable=True)
    first = 0
    for expert, count in enumerate(torch.bincount(flat, minlength=gate_up.shape[0]).tolist()):
        if count:
            picked = order[first : first + count]
            tokens = torch.div(picked, chosen.shape[1], rounding_mode="floor")
            inner = activation(linear(x.index_select(0, tokens), gate_up[expert], None, rows))
            result = linear(inner, down[expert], None, rows).float()
            out.index_add_(0, tokens, result.mul_(shares.index_select(0, picked).unsqueeze(-1)))
        first += count
    return out
