"""Times and steps of the starter model's solver, on data whose path is known: a normal distribution."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from edgewise.models.diffusion.starter.schedule import advance, times

SPREAD = 0.5  # of the data
NOISE = torch.tensor([-1.5, -0.2, 0.7, 2.0], dtype=torch.float64)


def best_guess(latents: torch.Tensor, time: float) -> torch.Tensor:
    """The mean of the data, given the latents."""
    return time * SPREAD**2 / (time**2 * SPREAD**2 + (1 - time) ** 2) * latents


def solve(steps: int, shift: float, *, carry: bool = True) -> float:
    """The largest error of the result; the true path ends at `SPREAD * NOISE`."""
    clock = times(steps, shift)
    latents = NOISE
    before: tuple[tuple[float, torch.Tensor], ...] = ()
    for now, following in pairwise(clock):
        guesses = (*before, (now, best_guess(latents, now)))
        latents = advance(latents, guesses, now, following)
        before = guesses[-1:] if carry else ()
    return float((latents - SPREAD * NOISE).abs().max())


@pytest.mark.parametrize("shift", [0.5, 1.0, 3.0])
@pytest.mark.parametrize("steps", [1, 2, 7])
def test_times_rise_from_0_to_1_and_crowd_where_they_are_told_to(steps: int, shift: float) -> None:
    clock = times(steps, shift)
    assert (clock[0], clock[-1], len(clock)) == (0.0, 1.0, steps + 1)
    assert all(now < following for now, following in pairwise(clock))
    if steps == 7 and shift != 1:
        assert (clock[3] < 3 / 7) == (shift > 1)


def test_a_known_picture_is_reached_exactly() -> None:
    picture = torch.tensor([0.3, -0.9], dtype=torch.float64)
    latents = torch.tensor([1.2, 0.4], dtype=torch.float64)
    for now, following in pairwise(times(5, 1.5)):
        latents = advance(latents, ((now, picture),), now, following)
    assert torch.allclose(latents, picture, atol=1e-12)


def test_carrying_the_change_on_makes_few_steps_do() -> None:
    # 4 for second order, 2 for first; the steps at both ends, where the ratio is infinite, are of first order.
    assert solve(40, 1.0) / solve(80, 1.0) > 2.7
    assert solve(12, 1.0) < 0.1 * solve(12, 1.0, carry=False)
