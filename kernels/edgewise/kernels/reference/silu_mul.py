from __future__ import annotations

import torch


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """Spelled out: `torch.nn.functional.silu` gives other bits at the end of a thread's share than in its middle, so a
    row's result would depend on how many rows there are. `exp` does not, and the rest is exact arithmetic."""
    gate, up = gate_up.chunk(2, dim=-1)
    gate = gate.float()
    divisor = gate.neg().exp_().add_(1.0)
    return torch.div(gate, divisor, out=divisor).mul_(up).to(gate_up.dtype)
