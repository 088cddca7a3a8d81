"""Which steps of a picture are computed, and which go on with what was computed last: a step cache after TeaCache (Liu et al.
2024, "Timestep Embedding Tells: It's Time to Cache for Video Diffusion Model").

A network's answer changes little between steps whose conditions (what its layers are modulated with: time and prompt) are alike.
TeaCache adds up their relative change and computes again when the sum passes a threshold. Conditions do not depend on what is
being drawn, so the plan is made before the first step: a picture is the same whatever is drawn beside it, and a step that is
abandoned leaves no trace. Between two computed steps the solver goes on with what it has, as in one longer step.

The first steps are always computed: they decide what will be seen, and a small error in them may end in another picture.
"""

from __future__ import annotations

import torch

_ALWAYS = 0.2  # share of the steps, the first ones


def plan_steps(conditions: torch.Tensor, allowed: float, start: int = 0) -> tuple[bool, ...]:
    """For every step, whether it is computed. The first fifth of them (one at least) and the last always are.

    Args:
        conditions: [steps, ...], of every step.
        allowed: Relative change (L1) that may add up before a step is computed again.
        start: First step that is taken.
    """
    flat = conditions.detach().flatten(1).to("cpu", torch.float64)
    changes = ((flat[1:] - flat[:-1]).abs().mean(1) / flat[:-1].abs().mean(1).clamp_min(1e-12)).tolist()
    last = len(flat) - 1
    plan, since = [True] * len(flat), 0.0
    for step in range(start + max(1, round(_ALWAYS * (len(flat) - start))), last):
        since += changes[step - 1]
        plan[step] = since >= allowed
        since *= not plan[step]
    return tuple(plan)
