"""Rounding as llama.cpp does it, bit for bit: what the gate holds our own to.

Sources: `quantize_row_q4_0_ref` and `quantize_row_q8_0_ref` of ggml. Products of both formats round their activations as Q8_0.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 - the name everybody uses

from edgewise.models.weights.rounding import GROUP


def q8_0(values: torch.Tensor) -> torch.Tensor:
    """What [..., cols] float32 is after Q8_0: codes against the unrounded scale, the scale rounded to float16."""
    groups = _groups(values)
    scale = groups.abs().amax(-1, keepdim=True) / 127.0
    codes = torch.round(groups * _inverse(scale))
    return _matrix(codes * scale.half().float(), values)


def q4_0(values: torch.Tensor) -> torch.Tensor:
    """What [..., cols] float32 is after Q4_0: the value farthest from zero becomes -8 times the scale."""
    groups = _groups(values)
    scale = groups.gather(-1, groups.abs().argmax(-1, keepdim=True)) / -8.0
    codes = torch.floor(groups * _inverse(scale) + 8.5).clamp_(0, 15) - 8.0
    return _matrix(codes * scale.half().float(), values)


def _inverse(scale: torch.Tensor) -> torch.Tensor:
    return torch.where(scale != 0, 1.0 / scale, torch.zeros_like(scale))


def _groups(values: torch.Tensor) -> torch.Tensor:
    return F.pad(values, (0, -values.shape[-1] % GROUP)).reshape(-1, GROUP)


def _matrix(groups: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    padded = groups.reshape(*like.shape[:-1], -1)
    return padded[..., : like.shape[-1]]
