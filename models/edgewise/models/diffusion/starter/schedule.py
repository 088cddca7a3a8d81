"""Times of the steps, and how one step goes: a straight path from noise (time 0) to the picture (time 1).

With z = t x + (1 - t) e and a network that gives x, the way from t to u is exact where x is constant between them:
z' = (1 - u) / (1 - t) z + (u - t (1 - u) / (1 - t)) x. x is carried on along its last change in log(t / (1 - t)), which makes
the solver second order at one evaluation a step (Lu et al. 2022, DPM-Solver++, the variant 2M).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch


def times(steps: int, shift: float) -> tuple[float, ...]:
    """`steps + 1` rising times from 0 to 1; the larger `shift`, the more of them are noisy."""
    left = [1 - step / steps for step in range(steps + 1)]
    return tuple(1 - shift * part / (1 + (shift - 1) * part) for part in left)


def advance(
    latents: torch.Tensor, guesses: Sequence[tuple[float, torch.Tensor]], now: float, following: float
) -> torch.Tensor:
    """One step.

    Args:
        latents: At the present time.
        guesses: The last pictures that were predicted, the latest last, with the times at which they were: usually that of the
            step before and now. Where the latest is older than `now`, its line is followed.
        now, following: Times of the step's beginning and end.
    """
    at, guess = guesses[-1]
    before_at, before = guesses[0] if len(guesses) > 1 else (0.0, guess)
    if before_at > 0 and following < 1:
        middle = _log_ratio(now) - _log_ratio(at) + (_log_ratio(following) - _log_ratio(now)) / 2
        guess = guess + middle / (_log_ratio(at) - _log_ratio(before_at)) * (guess - before)
    kept = (1 - following) / (1 - now)
    return kept * latents + (following - now * kept) * guess


def _log_ratio(time: float) -> float:
    return math.log(time / (1 - time))
