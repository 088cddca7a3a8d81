"""One layer's pages as the native library sees them (`KVPages` in src/kernels.h)."""

from __future__ import annotations

import ctypes

import torch

from edgewise.kernels.paging import PAGE_TOKENS, SCALED_FORMATS, KVLayer

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
        *((name, ctypes.c_int32) for name in ("kv_heads", "head_dim", "format", "pages")),
    )


def pages(layer: KVLayer) -> Pages:
    """The layer's memory, which must outlive the result.

    Raises:
        ValueError: The library has no such format, the tensors are not contiguous on the CPU, or their shapes do not agree.
    """
    tensors = [t for t in (layer.k, layer.v, layer.k_scale, layer.v_scale) if t is not None]
    if any(t.device.type != "cpu" or not t.is_contiguous() for t in tensors):
        raise ValueError("native kernels need contiguous pages on the CPU")
    if layer.k.dtype not in KV_FORMATS:
        raise ValueError(
            f"native kernels have no pages of {layer.k.dtype}; use one of {', '.join(map(str, KV_FORMATS))}"
        )
    shape = layer.k.shape
    scaled = layer.k.dtype in SCALED_FORMATS
    fits = len(shape) == 4 and shape[2] == PAGE_TOKENS and (layer.v.shape, layer.v.dtype) == (shape, layer.k.dtype)
    for scale in (layer.k_scale, layer.v_scale):
        fits &= (scale is not None) is scaled
        fits &= scale is None or (scale.shape, scale.dtype) == (shape[:3], torch.float32)
    if not fits:
        raise ValueError(
            f"k and v must be [pages, kv_heads, {PAGE_TOKENS}, head_dim] of one type, with float32 scales [pages, kv_heads, "
            f"{PAGE_TOKENS}] if that has 8 bits; got {[(tuple(t.shape), t.dtype) for t in tensors]}"
        )
    k_scale, v_scale = (None if t is None else t.data_ptr() for t in (layer.k_scale, layer.v_scale))
    return Pages(
        layer.k.data_ptr(),
        layer.v.data_ptr(),
        k_scale,
        v_scale,
        shape[1],
        shape[3],
        KV_FORMATS[layer.k.dtype],
        shape[0],
    )
