"""The tensors of the paged KV cache. Which page belongs to whom is `engine.pages`' business."""

from __future__ import annotations

import math

import numpy as np
import torch

from edgewise.kernels.paging import PAGE_TOKENS, KVLayer
from edgewise.models.decoder.config import DecoderConfig


def allocate(config: DecoderConfig, *, num_pages: int, kv_dtype: str, device: torch.device) -> list[KVLayer]:
    """One `KVLayer` per layer, zeroed. On the CPU the system commits memory only where it is first written."""
    return [_layer(config, num_pages, kv_dtype, device) for _ in range(config.num_layers)]


def _layer(config: DecoderConfig, num_pages: int, kv_dtype: str, device: torch.device) -> KVLayer:
    dtype: torch.dtype = getattr(torch, kv_dtype)
    shape = (num_pages, config.num_kv_heads, PAGE_TOKENS, config.head_dim)
    k, v = (_zeros(shape, dtype, device) for _ in range(2))
    if dtype is not torch.int8:
        return KVLayer(k, v)
    k_scale, v_scale = (_zeros(shape[:3], torch.float32, device) for _ in range(2))
    return KVLayer(k, v, k_scale, v_scale)


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """torch.zeros on the CPU writes every byte, which commits the whole cache at start; numpy asks calloc for zero pages."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    return torch.from_numpy(np.zeros(math.prod(shape) * dtype.itemsize, dtype=np.uint8)).view(dtype).view(shape)
