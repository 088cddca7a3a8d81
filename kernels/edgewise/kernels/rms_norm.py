"""Root-mean-square normalisation of rows."""

from __future__ import annotations

import torch

from edgewise.kernels.back_end import BackEnd
from edgewise.kernels.native import rms_norm as native
from edgewise.kernels.reference import rms_norm as reference


def rms_norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    dtype: torch.dtype | None = None,
    *,
    back_end: BackEnd = "reference",
) -> torch.Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension, in float32 (Zhang and Sennrich 2019).

    Args:
        x: [..., n] floating point.
        weight: [n], or [heads, n] for x [..., heads, n] (a weight of its own for each head); float32.
        eps: Added to the mean square.
        dtype: Of the result; None for float32.

    Returns:
        The shape of `x`, contiguous.

    Raises:
        ValueError: Shapes do not agree or `weight` is not float32.
        NativeUnavailable: `native` was asked for and there is no library.
    """
    if weight.dtype != torch.float32 or weight.dim() not in (1, 2) or weight.shape != x.shape[x.dim() - weight.dim() :]:
        raise ValueError(f"weight must be float32 with x's last dimensions, got {tuple(weight.shape)} {weight.dtype}")
    if back_end == "native":
        return native.rms_norm(x, weight, eps, dtype or torch.float32)
    return reference.rms_norm(x, weight, eps, dtype or torch.float32)
