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
    latents: torch.Tensor, guess: torch.Tensor, before: torch.Tensor | None, clock: Sequence[float]
) -> torch.Tensor:
    """One step.

    Args:
        latents: At the present time.
        guess: The picture as predicted from them.
        before: The prediction of the step before; None at the first.
        clock: Times of the step before (whatever it is where `before` is None), now, and next.
    """
    last, now, following = clock
    if before is not None and last > 0 and following < 1:
        ahead, behind = _log_ratio(following) - _log_ratio(now), _log_ratio(now) - _log_ratio(last)
        guess = guess + ahead / (2 * behind) * (guess - before)
    kept = (1 - following) / (1 - now)
    return kept * latents + (following - now * kept) * guess


def _log_ratio(time: float) -> float:
    return math.log(time / (1 - time))
