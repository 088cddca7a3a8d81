"""Rows of the embedding table."""

from __future__ import annotations

import torch

from edgewise.kernels.reference import embedding as reference


def embedding(tokens: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """Look up tokens.

    Args:
        tokens: [T] int64, each in [0, vocab); the caller has checked them.
        table: [vocab, hidden] floating point.

    Returns:
        [T, hidden] float32.

    Raises:
        ValueError: Shapes or dtypes are wrong.
    """
    if tokens.dim() != 1 or tokens.dtype != torch.int64 or table.dim() != 2:
        raise ValueError(
            f"tokens must be [T] int64 and table [vocab, hidden], got {tokens.dtype} {tuple(tokens.shape)}"
        )
    return reference.embedding(tokens, table)
