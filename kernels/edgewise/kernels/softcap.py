"""Soft cap of logits."""

from __future__ import annotations

import torch

from edgewise.kernels.back_end import BackEnd
from edgewise.kernels.native import softcap as native
from edgewise.kernels.reference import softcap as reference


def softcap(logits: torch.Tensor, cap: float, *, back_end: BackEnd = "reference") -> torch.Tensor:
    """cap * tanh(logits / cap), which keeps values within (-cap, cap) (Gemma Team 2024, Gemma 2, section 2).

    Args:
        logits: Any shape, float32; changed. Contiguous for `native`.
        cap: Above 0.

    Returns:
        `logits`.

    Raises:
        ValueError: Another dtype, or a cap that is not positive.
        NativeUnavailable: `native` was asked for and there is no library.
    """
    if logits.dtype != torch.float32 or not cap > 0:
        raise ValueError(f"logits must be float32 and the cap positive, got {logits.dtype} and {cap}")
    if back_end == "native":
        return native.softcap_(logits, cap)
    return reference.softcap_(logits, cap)
