"""The card's draw is the host's: the same tokens for the same logits, numbers and filters."""

from __future__ import annotations

import pytest
import torch

from edgewise.kernels.philox import uniform
from edgewise.kernels.sample import RowControls, sample
from tests.kernels.interpreter import interpreted

sampling = interpreted("sampling")

# numpy, of which the interpreter makes use, warns where the card computes NaN of infinities.
pytestmark = pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning", "ignore:overflow:RuntimeWarning")


def drawn(logits: torch.Tensor, heat: float, least: float, seeds: list[int], places: list[int]) -> list[int]:
    rows = logits.shape[0]
    out = torch.full((rows,), 12345)
    signed = torch.tensor([seed - 2**64 if seed >= 2**63 else seed for seed in seeds])
    full = [torch.full((rows,), value) for value in (heat, least)]
    sampling.draw(logits, *full, signed, torch.tensor(places), out)
    return out.tolist()


@pytest.mark.parametrize(("heat", "least"), [(0.0, 0.0), (1.0, 0.0), (0.3, 0.0), (2.0, 0.02), (0.7, 0.5)])
@pytest.mark.parametrize("vocab", [50, 4096, 9001])
def test_tokens_are_the_hosts(heat: float, least: float, vocab: int) -> None:
    rows = 6
    logits = torch.randn((rows, vocab), generator=torch.Generator().manual_seed(vocab)) * 3
    logits[1, ::2] = -torch.inf
    logits[2, vocab // 2 :] = logits[2, 0] + 5  # equal ones
    seeds = [0, 1, 2**64 - 1, 2**63, 12345678901234567890, 7]
    places = [0, 1, 2, 1000, 70000, 2**33]
    expected = [
        one.token
        for seed, place, row in zip(seeds, places, logits, strict=True)
        for one in sample(
            row[None],
            [RowControls(temperature=heat, min_p=least, uniform=uniform(seed, place) if heat else 0.0)],
        )
    ]
    assert drawn(logits, heat, least, seeds, places) == expected


def test_rows_that_are_not_finite_are_told() -> None:
    logits = torch.randn((4, 5000), generator=torch.Generator().manual_seed(1))
    logits[0, 4999] = torch.nan
    logits[1, 17] = torch.inf
    logits[2] = -torch.inf
    for heat in (0.0, 1.0):
        found = drawn(logits, heat, 0.0, [1, 2, 3, 4], [0, 1, 2, 3])
        assert found[:3] == [-1, -1, -1]
        assert 0 <= found[3] < 5000


def test_a_row_does_not_depend_on_its_neighbours() -> None:
    logits = torch.randn((5, 5000), generator=torch.Generator().manual_seed(2))
    seeds, places = [1, 2, 3, 4, 5], [9, 8, 7, 6, 5]
    together = drawn(logits, 1.0, 0.0, seeds, places)
    alone = [drawn(logits[i : i + 1].contiguous(), 1.0, 0.0, seeds[i : i + 1], places[i : i + 1])[0] for i in range(5)]
    assert together == alone
