"""Attention of prompts that a step computes from their first token on, by the library.

cuDNN's attention (through torch) is half as fast again as ours on Hopper (measured on an H200, 32,768 tokens, heads of 128: 576
against 351 TFLOP/s), but it depends on how a prompt is cut into chunks. So it serves where products of prompts do as well.
"""

from __future__ import annotations

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from edgewise.kernels.limits import PAGE_TOKENS
from edgewise.kernels.paging import AttentionMeta, KVLayer

_LEAST = 1024  # tokens from which on gathering the pages pays
_BACKENDS = [
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
]


def all_whole(meta: AttentionMeta) -> bool:
    """Whether every sequence of a step is a long prompt of which nothing has been computed before."""
    return meta.query_lens == meta.context_lens and min(meta.query_lens) >= _LEAST


def attend_whole(q: torch.Tensor, kv: KVLayer, meta: AttentionMeta, out: torch.Tensor, scale: float) -> None:
    """Causal attention of whole prompts.

    Args:
        q: [T, heads, head_dim] bfloat16 or float16, normalised and rotated.
        kv: The layer's pages, keys and values of the step written.
        meta: Of a step that is `all_whole`.
        out: [T, heads, head_dim] to write to.
    """
    first = 0
    for row, count in enumerate(meta.query_lens):
        pages = meta.block_tables[row, : -(-count // PAGE_TOKENS)].long()
        k = _gathered(kv.k, kv.k_scale, pages, count, q.dtype)
        v = _gathered(kv.v, kv.v_scale, pages, count, q.dtype)
        own = q[first : first + count].transpose(0, 1).unsqueeze(0)
        with sdpa_kernel(_BACKENDS, set_priority=True):
            found = scaled_dot_product_attention(own, k, v, is_causal=True, scale=scale, enable_gqa=True)
        out[first : first + count].copy_(found[0].transpose(0, 1))
        first += count


def _gathered(
    stored: torch.Tensor, scale: torch.Tensor | None, pages: torch.Tensor, count: int, dtype: torch.dtype
) -> torch.Tensor:
    """[1, kv_heads, count, head_dim]: the first tokens of a sequence."""
    cells = stored.view(torch.uint8)[pages].view(stored.dtype).to(dtype)
    if scale is not None:
        cells = (cells.float() * scale[pages].unsqueeze(-1)).to(dtype)
    return cells.transpose(0, 1).flatten(1, 2)[:, :count].unsqueeze(0)
