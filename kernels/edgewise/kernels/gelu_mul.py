"""The gated activation of the feed-forward block with GELU in its tanh form."""

from __future__ import annotations

import torch

from edgewise.kernels.reference import gelu_mul as reference


def gelu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """gelu(gate) * up, in float32 (Hendrycks and Gimpel 2016, the tanh approximation; Shazeer 2020, GLU variants).

    Args:
        gate_up: [rows, 2 * n], gate in the first n columns, up in the others; floating point.

    Returns:
        [rows, n], the dtype of `gate_up`.

    Raises:
        ValueError: Not two dimensions or an odd number of columns.
    """
    if gate_up.dim() != 2 or gate_up.shape[1] % 2:
        raise ValueError(f"gate_up must be [rows, 2 * n], got {tuple(gate_up.shape)}")
    return reference.gelu_mul(gate_up)
