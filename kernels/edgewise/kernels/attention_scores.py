"""Scores of queries over one sequence's keys, for whoever asks where attention lies rather than what it brings."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from edgewise.kernels.paging import PAGE_TOKENS, SCALED_FORMATS, KVLayer
from edgewise.kernels.reference import attention_scores as reference


def attention_scores(
    q: torch.Tensor, kv: KVLayer, pages: torch.Tensor, *, heads: Sequence[int], count: int, scale: float
) -> torch.Tensor:
    """q k^T * scale against the first `count` keys of a sequence, unmasked and before any softmax, in float32.

    One sequence at a time, so the result cannot depend on what else is computed.

    Args:
        q: [n, all heads, head_dim] floating point.
        kv: The layer's pages; as many heads of keys as of queries.
        pages: [p] integers, the sequence's pages in order.
        heads: Which heads are asked for.
        count: At most p * PAGE_TOKENS.
        scale: Usually head_dim ** -0.5.

    Returns:
        [len(heads), n, count] float32.

    Raises:
        ValueError: Shapes do not agree, or `count` or `heads` is out of range.
    """
    if q.dim() != 3 or q.shape[1:] != (kv.k.shape[1], kv.k.shape[3]):
        raise ValueError(f"q must be [n, {kv.k.shape[1]}, {kv.k.shape[3]}], got {tuple(q.shape)}")
    if kv.k.dtype in SCALED_FORMATS and kv.k_scale is None:
        raise ValueError(f"{kv.k.dtype} pages need k_scale")
    if not 1 <= count <= pages.shape[0] * PAGE_TOKENS:
        raise ValueError(f"count must be in [1, {pages.shape[0] * PAGE_TOKENS}], got {count}")
    if any(not 0 <= head < q.shape[1] for head in heads):
        raise ValueError(f"heads must be in [0, {q.shape[1]}), got {tuple(heads)}")
    return reference.scores(q, kv, pages, tuple(heads), count, scale)
