"""A feed-forward block of experts: each token goes through a few of them, chosen by a router.

These are the reference's operations, which wait for the counts of each expert's tokens. On CUDA decoders compute with
`kernels.triton.routing` and `expert_product`, which do not; on a CPU the native step has its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from edgewise.kernels.reference import experts as reference
from edgewise.kernels.rows import Rows, default_rows

Activation = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True)
class Routes:
    """Where T tokens go.

    Attributes:
        experts: [T, k] int64, all different in a row; the heaviest first.
        weights: [T, k] float32.
    """

    experts: torch.Tensor
    weights: torch.Tensor


def route(logits: torch.Tensor, per_token: int, *, normalised: bool) -> Routes:
    """The `per_token` likeliest experts of each token and their probabilities (Shazeer et al. 2017; Jiang et al. 2024, Mixtral).

    Args:
        logits: [T, experts] floating point. Among equal ones the first expert wins, so that a token's way depends on
            its own logits alone.
        per_token: Experts per token, 1 to experts.
        normalised: Whether the chosen probabilities are scaled to a sum of 1.

    Raises:
        ValueError: Not two dimensions, or more experts asked for than there are.
    """
    if logits.dim() != 2 or not 1 <= per_token <= logits.shape[1]:
        raise ValueError(f"logits must be [T, >= {per_token}] with per_token >= 1, got {tuple(logits.shape)}")
    return Routes(*reference.route(logits, per_token, normalised))


def mix_experts(
    x: torch.Tensor,
    routes: Routes,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    activation: Activation,
    rows: Rows | None = None,
) -> torch.Tensor:
    """Sum over a token's experts of weight * down(activation(gate_up(x))).

    A token's result has the same bits whoever else is routed to its experts: rows of one expert are padded by the
    rule of `kernels.rows`, and a token's experts are added in ascending order.

    Args:
        x: [T, hidden], float32, bfloat16 or float16.
        routes: Of the T tokens.
        gate_up: [experts, 2 * n, hidden], the dtype of `x`.
        down: [experts, hidden, n], the dtype of `x`.
        activation: [rows, 2 * n] -> [rows, n], such as `silu_mul`.
        rows: As for `linear`; None takes `default_rows`.

    Returns:
        [T, hidden] float32.

    Raises:
        ValueError: Shapes or dtypes do not agree.
    """
    count, hidden = x.shape
    experts, inner = gate_up.shape[0], gate_up.shape[1] // 2
    if gate_up.shape != (experts, 2 * inner, hidden) or down.shape != (experts, hidden, inner):
        raise ValueError(
            f"gate_up must be [experts, 2 * n, {hidden}] and down [experts, {hidden}, n], "
            f"got {tuple(gate_up.shape)} and {tuple(down.shape)}"
        )
    if routes.experts.shape[:1] != (count,) or routes.experts.shape != routes.weights.shape:
        raise ValueError(f"routes must be [{count}, k], got {tuple(routes.experts.shape)}")
    if gate_up.dtype != x.dtype or down.dtype != x.dtype:
        raise ValueError(f"x, gate_up and down must share a dtype, got {x.dtype}, {gate_up.dtype}, {down.dtype}")
    return reference.mix(x, routes.experts, routes.weights, gate_up, down, activation, rows or default_rows(x.dtype))
