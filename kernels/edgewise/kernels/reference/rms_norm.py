from __future__ import annotations

import torch


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float, dtype: torch.dtype) -> torch.Tensor:
    x = x.float().contiguous()
    if weight.dim() == 1:
        return torch.rms_norm(x, weight.shape, weight, eps).to(dtype)
    return torch.rms_norm(x, weight.shape[-1:], None, eps).mul_(weight).to(dtype)
