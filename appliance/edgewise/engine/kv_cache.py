"""The tensors of the paged KV cache. Which page belongs to whom is `engine.pages`' business."""

from __future__ import annotations

import torch
from edgewise.kernels.paging import PAGE_TOKENS, KVLayer
from edgewise.models.decoder.config import DecoderConfig


def allocate(config: DecoderConfig, *, num_pages: int, kv_dtype: str, device: torch.device) -> list[KVLayer]:
    """One `KVLayer` per layer, zeroed. On the CPU the system commits a page only when it is first written."""
    return [_layer(config, num_pages, kv_dtype, device) for _ in range(config.num_layers)]


def _layer(config: DecoderConfig, num_pages: int, kv_dtype: str, device: torch.device) -> KVLayer:
    dtype: torch.dtype = getattr(torch, kv_dtype)
    shape = (num_pages, config.num_kv_heads, PAGE_TOKENS, config.head_dim)
    k, v = (torch.zeros(shape, dtype=dtype, device=device) for _ in range(2))
    if dtype is not torch.int8:
        return KVLayer(k, v)
    k_scale, v_scale = (torch.zeros(shape[:3], dtype=torch.float32, device=device) for _ in range(2))
    return KVLayer(k, v, k_scale, v_scale)
