"""The paged KV cache as kernels see it: one layer's storage, and which tokens of a ragged batch live where."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from edgewise.kernels.limits import PAGE_TOKENS

__all__ = ["PAGE_TOKENS", "SCALED_FORMATS", "AttentionMeta", "KVLayer"]

SCALED_FORMATS = (torch.int8, torch.float8_e4m3fn)
"""Formats of 8 bits, which need a scale per token and head."""


@dataclass(frozen=True, slots=True)
class KVLayer:
    """Keys and values of one layer.

    Attributes:
        k, v: [num_pages, kv_heads, PAGE_TOKENS, head_dim]; float32, bfloat16, float16, int8 or float8_e4m3fn.
        k_scale, v_scale: [num_pages, kv_heads, PAGE_TOKENS] float32, one scale per token and head; None unless `k` has 8 bits.
            A stored value x stands for x * scale; scale = max|row| / the format's largest number (127, 448).
    """

    k: torch.Tensor
    v: torch.Tensor
    k_scale: torch.Tensor | None = None
    v_scale: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class AttentionMeta:
    """Layout of a ragged batch of T tokens that belong to B sequences, sequence after sequence.

    Attributes:
        query_lens: New tokens per sequence, in batch order; sums to T.
        context_lens: Tokens per sequence in the cache once this step's are written (so the last new token of sequence i has
            position context_lens[i] - 1).
        positions: [T] int64, position of each token in its sequence.
        slots: [T] int64, where each token is written: page * PAGE_TOKENS + offset.
        block_tables: [B, max_pages] int32, pages of each sequence in order; unused entries are 0 (a valid page that is never
            read unmasked).
        visible: [T] int64, the last position that each token sees, where that is not its own: a picture's tokens that see all of
            it, text that sees all of a recording. Within the sequence's context; a window reaches back from the token's own
            position all the same. None: every token sees itself and what came before.
        rope_positions: [3, T] int64, positions by which rotary embeddings turn, where they are numbered in three dimensions
            (time, height, width); None: `positions`.
    """

    query_lens: tuple[int, ...]
    context_lens: tuple[int, ...]
    positions: torch.Tensor
    slots: torch.Tensor
    block_tables: torch.Tensor
    visible: torch.Tensor | None = None
    rope_positions: torch.Tensor | None = None
