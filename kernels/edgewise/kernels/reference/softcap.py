from __future__ import annotations

import torch


def softcap_(logits: torch.Tensor, cap: float) -> torch.Tensor:
    return logits.div_(cap).tanh_().mul_(cap)
