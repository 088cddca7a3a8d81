"""The tensors of the paged KV cache. Which page belongs to whom is `engine.pages`' business."""

from __future__ import annotations

import math

import numpy as np
import torch

from edgewise.kernels.paging import PAGE_TOKENS, SCALED_FORMATS, KVLayer
from edgewise.models.decoder.kv_formats import NetworkConfig, kv_formats, kv_shapes

CACHE_LINE = 64  # bytes

_DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "int8": torch.int8,
    "fp8": torch.float8_e4m3fn,
}


def allocate(
    config: NetworkConfig, *, num_pages: int, kv_dtype: str, device: torch.device, dtype: str = "bfloat16"
) -> list[KVLayer]:
    """One `KVLayer` per layer, zeroed. On the CPU the system commits memory only where it is first written.

    Args:
        kv_dtype: The format asked for; `kv_formats` says which layers take it.
        dtype: Of the weights.
    """
    return [
        _layer((num_pages, kv_heads, PAGE_TOKENS, head_dim), _DTYPES[name], device)
        for name, (kv_heads, head_dim) in zip(kv_formats(config, kv_dtype, dtype), kv_shapes(config), strict=True)
    ]


def _layer(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> KVLayer:
    k, v = (_zeros(shape, dtype, device) for _ in range(2))
    if dtype not in SCALED_FORMATS:
        return KVLayer(k, v)
    k_scale, v_scale = (_zeros(shape[:3], torch.float32, device) for _ in range(2))
    return KVLayer(k, v, k_scale, v_scale)


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """torch.zeros on the CPU writes every byte, which commits the whole cache at start; numpy asks calloc for zero pages.

    It starts at a cache line: calloc's memory does not, and a row of 64 bytes across two lines takes a processor half as long
    again.
    """
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    count = math.prod(shape) * dtype.itemsize
    memory = np.zeros(count + CACHE_LINE - 1, dtype=np.uint8)
    first = -memory.ctypes.data % CACHE_LINE
    return torch.from_numpy(memory[first : first + count]).view(dtype).view(shape)
