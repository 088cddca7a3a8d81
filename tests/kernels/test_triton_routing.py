"""Routing on the card, under Triton's interpreter: the reference's choice, and tiles that hold every pair once."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from edgewise.kernels.experts import route
from tests.kernels.interpreter import interpreted

routing = interpreted("routing")
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of numpy, about rows that are none

NOWHERE = -(1 << 20)
_empty = torch.empty


def poisoned(*size: Any, **options: Any) -> torch.Tensor:
    """As `torch.empty`, filled with NaN or with a number that is no expert, pair or tile."""
    out = _empty(*size, **options)
    return out.fill_(torch.nan if out.dtype.is_floating_point else NOWHERE)


def routed(logits: torch.Tensor, slots: torch.Tensor | None = None, k: int = 2, **options: Any) -> Any:
    places = torch.arange(len(logits)) if slots is None else slots
    asked = {"normalised": True, "tile_rows": 8, **options}
    with mock.patch("torch.empty", poisoned):
        return routing.route_tokens(logits, places, k, **asked)


@settings(max_examples=24, deadline=None)
@given(data=st.data())
def test_tokens_go_where_the_reference_sends_them(data: st.DataObject) -> None:
    """Logits with few values have many ties; from 65 rows on there are two launches."""
    rows = data.draw(st.one_of(st.integers(1, 20), st.integers(60, 70)))
    experts = data.draw(st.integers(1, 20))
    k = data.draw(st.integers(1, min(experts, 5)))
    normalised, values = data.draw(st.booleans()), data.draw(st.sampled_from([2, 5, 1000]))
    tile_rows = data.draw(st.sampled_from([8, 16, 32]))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 1000)))
    logits = (torch.randint(0, values, (rows, experts), generator=generator) * (6 / values)).bfloat16()
    slots = torch.where(torch.rand(rows, generator=generator) < 0.2, -1, torch.arange(rows))
    found = routed(logits, slots, k, normalised=normalised, tile_rows=tile_rows)

    expected = route(logits, k, normalised=normalised)
    chosen, order = expected.experts.sort(dim=1)
    real = slots >= 0
    assert torch.equal(found.experts[real], chosen[real].int())
    torch.testing.assert_close(found.weights[real], expected.weights.gather(1, order)[real])
    assert bool((found.experts[~real] == -1).all() & (found.weights[~real] == 0).all())

    count = int(found.count)
    assert count <= found.tiles.shape[0] == routing.most_tiles(rows, k, experts, tile_rows)
    met: list[int] = []
    for expert, first, end in found.tiles[:count].tolist():
        assert 0 < end - first <= tile_rows
        pairs = found.order[first:end].tolist()
        assert [int(found.experts.view(-1)[pair]) for pair in pairs] == [expert] * len(pairs)
        assert pairs == sorted(pairs)
        met += pairs
    assert sorted(met) == (real.nonzero() * k + torch.arange(k)).flatten().tolist()


def test_a_token_has_the_same_weights_alone_and_in_any_company() -> None:
    logits = torch.randn(70, 24, generator=torch.Generator().manual_seed(1))
    whole = routed(logits, k=4)
    for rows in (slice(0, 1), slice(5, 6), slice(3, 12), slice(0, 64)):
        part = routed(logits[rows].contiguous(), k=4)
        assert torch.equal(part.experts, whole.experts[rows])
        assert torch.equal(part.weights, whole.weights[rows])


def test_one_token_has_a_tile_for_each_of_its_experts() -> None:
    found = routed(torch.randn(1, 128, generator=torch.Generator().manual_seed(1)), k=8)
    assert found.tiles.shape[0] == int(found.count) == 8
    assert found.tiles[:, 0].tolist() == found.experts[0].tolist()


@pytest.mark.parametrize("poison", [torch.nan, torch.inf])
def test_what_is_not_finite_stays_in_its_row(poison: float) -> None:
    logits = torch.randn(3, 6, generator=torch.Generator().manual_seed(1))
    logits[1, 4] = poison
    found = routed(logits)
    assert found.weights[1].isnan().all()
    assert found.experts[1].tolist() == [0, 1]
    assert found.weights[::2].isfinite().all()


def test_unlikely_experts_tie_at_zero_and_the_first_wins() -> None:
    logits = torch.tensor([[-300.0, -200.0, 0.0, -250.0]])
    assert (
        routed(logits).experts.tolist() == [[0, 2]] == route(logits, 2, normalised=True).experts.sort().values.tolist()
    )


def test_wrong_arguments_are_named() -> None:
    logits, slots = torch.zeros(3, 4), torch.arange(3)
    for wrong, k in ((logits, 5), (logits, 0), (torch.zeros(3, 513), 2), (torch.zeros(0, 4), 2), (torch.zeros(4), 1)):
        with pytest.raises(ValueError, match="logits must be"):
            routing.route_tokens(wrong, slots, k, normalised=True, tile_rows=8)
    with pytest.raises(ValueError, match="slots must be"):
        routing.route_tokens(logits, slots.int(), 2, normalised=True, tile_rows=8)
