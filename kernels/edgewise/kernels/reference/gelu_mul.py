from __future__ import annotations

import math

import torch

_INNER = 2.0 * math.sqrt(2.0 / math.pi)
_CUBIC = 0.044715


def gelu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """(1 + tanh(u)) / 2 is the logistic function of 2u, so this is `silu_mul` with another argument, spelled out like it."""
    gate, up = gate_up.chunk(2, dim=-1)
    gate = gate.float()
    inner = torch.mul(gate, gate).mul_(_CUBIC).add_(1.0).mul_(gate).mul_(-_INNER)
    divisor = inner.exp_().add_(1.0)
    return torch.div(gate, divisor, out=divisor).mul_(up).to(gate_up.dtype)
