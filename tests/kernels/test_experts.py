"""Experts: the reference's routing and sums, and the same bits for a token whoever else goes to its experts."""

from __future__ import annotations

import pytest
import torch

from edgewise.kernels.experts import Routes, mix_experts, route
from edgewise.kernels.linear import measure
from edgewise.kernels.silu_mul import silu_mul

EXPERTS, HIDDEN, INNER = 6, 48, 40


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("normalised", [False, True])
def test_routes_are_the_likeliest_experts(normalised: bool) -> None:
    logits = random(200, 8) * 2
    routes = route(logits, 3, normalised=normalised)
    weights, experts = torch.topk(torch.softmax(logits, -1), 3)
    assert torch.equal(routes.experts, experts)
    if normalised:
        weights = weights / weights.sum(-1, keepdim=True)
    torch.testing.assert_close(routes.weights, weights)


def test_ties_go_to_the_first_expert() -> None:
    assert route(torch.zeros(5, 40), 4, normalised=True).experts.tolist() == [[0, 1, 2, 3]] * 5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sum_over_a_tokens_experts_in_any_company(dtype: torch.dtype) -> None:
    gate_up = (random(EXPERTS, 2 * INNER, HIDDEN, seed=1) * HIDDEN**-0.5).to(dtype)
    down = (random(EXPERTS, HIDDEN, INNER, seed=2) * INNER**-0.5).to(dtype)
    rows = measure([gate_up[0], down[0]])
    assert rows.proven
    x, routes = random(150, HIDDEN).to(dtype), route(random(150, EXPERTS, seed=3) * 2, 2, normalised=True)
    whole = mix_experts(x, routes, gate_up, down, silu_mul, rows)

    expected = torch.zeros(150, HIDDEN, dtype=torch.float64)
    for token in range(150):
        for expert, weight in zip(routes.experts[token].tolist(), routes.weights[token].tolist(), strict=True):
            gate, up = (gate_up[expert].double() @ x[token].double()).chunk(2)
            inner = torch.nn.functional.silu(gate) * up
            expected[token] += weight * (down[expert].double() @ inner)
    tolerance = 1e-5 if dtype is torch.float32 else 0.05
    torch.testing.assert_close(whole.double(), expected, rtol=0, atol=tolerance)

    for first, count in ((0, 1), (3, 1), (10, 7), (149, 1), (0, 149), (20, 64)):
        part = slice(first, first + count)
        alone = mix_experts(x[part], Routes(routes.experts[part], routes.weights[part]), gate_up, down, silu_mul, rows)
        assert torch.equal(alone, whole[part])


def test_wrong_arguments_are_named() -> None:
    x, routes = torch.zeros(3, 8), route(torch.zeros(3, 2), 1, normalised=False)
    gate_up, down = torch.zeros(2, 12, 8), torch.zeros(2, 8, 6)
    with pytest.raises(ValueError, match="per_token"):
        route(torch.zeros(3, 2), 3, normalised=False)
    with pytest.raises(ValueError, match="down"):
        mix_experts(x, routes, gate_up, torch.zeros(2, 8, 5), silu_mul)
    with pytest.raises(ValueError, match="routes"):
        mix_experts(x[:2], routes, gate_up, down, silu_mul)
    with pytest.raises(ValueError, match="dtype"):
        mix_experts(x, routes, gate_up.bfloat16(), down, silu_mul)
