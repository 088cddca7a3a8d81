"""Feed-forward blocks of experts on a card, in steps and in prompts. Launches depend on shapes alone: a graph can hold them."""

from __future__ import annotations

import torch

from edgewise.kernels.rows import Rows
from edgewise.kernels.triton.decode_product import Residual, project
from edgewise.kernels.triton.expert_product import (
    add_experts,
    down_experts,
    gated_experts,
    gated_step,
    prompt_tile_rows,
    step_tile_rows,
    sum_experts,
)
from edgewise.kernels.triton.plan import Plan
from edgewise.kernels.triton.post_norm import post_add
from edgewise.kernels.triton.routing import route_tokens
from edgewise.models.decoder.config import DecoderConfig
from edgewise.models.decoder.cuda.products import long_product
from edgewise.models.decoder.cuda.weights import CardLayer, ExpertWeights
from edgewise.models.decoder.experts import Experts


def step_experts(
    r: Residual,
    layer: CardLayer,
    weights: ExpertWeights,
    config: DecoderConfig,
    slots: torch.Tensor,
    norm: torch.Tensor,
    plan: Plan,
) -> None:
    """Add a block's result to the residual stream of a step.

    Args:
        r: The stream, scaled for the norm before the block; changed, and scaled for the next one.
        layer: Whose block it is.
        slots: [rows] int64, negative for padding, which reads no expert.
        norm: [hidden] float32, weight of the next norm.
        plan: How kernels are launched.
    """
    experts, rows, eps = weights.experts, r.x.shape[0], config.rms_eps
    logits = r.scaled.new_empty((rows, experts.count))
    project(r, weights.router, eps, logits, plan.product("project", weights.router, rows))
    routed = route_tokens(
        logits, slots, experts.per_token, normalised=experts.normalised, tile_rows=step_tile_rows(rows)
    )
    active, parts = _room(r.scaled, experts)
    gated_step(r, routed, layer.gate_up, eps, active, config.activation, plan.form)
    down_experts(active, routed, layer.down, parts, plan.form)
    if layer.ffn_post_norm is None:
        add_experts(parts, routed, r, norm)
        return
    delta = sum_experts(parts, routed, torch.empty_like(r.x))
    post_add(delta, layer.ffn_post_norm, r, norm, eps)


def prompt_experts(
    normed: torch.Tensor,
    layer: CardLayer,
    weights: ExpertWeights,
    config: DecoderConfig,
    slots: torch.Tensor,
    rows: Rows,
) -> torch.Tensor:
    """A block's result for prompts.

    Args:
        normed: [T, hidden], the weights' dtype, after the norm before the block.
        slots: [T] int64, negative for padding, whose result is 0.
        rows: How many rows the router's product is computed with; the experts' need no such rule.

    Returns:
        [T, hidden] float32.
    """
    experts = weights.experts
    routed = route_tokens(
        long_product(normed, weights.router, rows),
        slots,
        experts.per_token,
        normalised=experts.normalised,
        tile_rows=prompt_tile_rows(normed.device),
    )
    active, parts = _room(normed, experts)
    gated_experts(normed, routed, layer.gate_up, active, config.activation)
    down_experts(active, routed, layer.down, parts)
    return sum_experts(parts, routed, torch.empty(normed.shape, device=normed.device))


def _room(x: torch.Tensor, experts: Experts) -> tuple[torch.Tensor, torch.Tensor]:
    """For what a token's experts compute: [T * k, inner] and [T * k, hidden]."""
    pairs = x.shape[0] * experts.per_token
    return x.new_empty((pairs, experts.ffn_size)), x.new_empty((pairs, x.shape[1]))
