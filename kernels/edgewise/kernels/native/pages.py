"""One layer's pages as the native library sees them (`KVPages` in src/kernels.h)."""

from __future__ import annotations

import ctypes

import torch

from edgewise.kernels.paging import KVLayer

KV_FORMATS = {
    torch.float32: 0,
    torch.bfloat16: 1,
    torch.float16: 2,
    torch.int8: 3,
    torch.float8_e4m3fn: 4,
}


class Pages(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("k", "v", "k_scale", "v_scale")),
        *((name, ctypes.c_int32) for name in ("kv_heads", "head_dim", "format")),
    )


def pages(layer: KVLayer) -> Pages:
    """The layer's memory, which must outlive the result.

    Raises:
        ValueError: The library has no such format, or the tensors are not contiguous on the CPU.
    """
    tensors = [t for t in (layer.k, layer.v, layer.k_scale, layer.v_scale) if t is not None]
    if any(t.device.type != "cpu" or not t.is_contiguous() for t in tensors):
        raise ValueError("native kernels need contiguous pages on the CPU")
    if layer.k.dtype not in KV_FORMATS:
        raise ValueError(
            f"native kernels have no pages of {layer.k.dtype}; use one of {', '.join(map(str, KV_FORMATS))}"
        )
    k_scale, v_scale = (None if t is None else t.data_ptr() for t in (layer.k_scale, layer.v_scale))
    shape = layer.k.shape
    return Pages(
        layer.k.data_ptr(), layer.v.data_ptr(), k_scale, v_scale, shape[1], shape[3], KV_FORMATS[layer.k.dtype]
    )
