"""`kernels.rope.apply_rope` on the CPU in C++ (src/rowwise.inc.h): the same bits as the reference."""

from __future__ import annotations

import ctypes

import torch

from edgewise.kernels.native.library import library

_Pointer, _Int = ctypes.c_void_p, ctypes.c_int32


def apply(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """As `kernels.rope.apply_rope`, which checks the arguments; `cos`, `sin`: [T, 1, n], cos twice, and -sin before sin.

    Raises:
        NativeUnavailable: There is no library.
    """
    out = x.to(torch.float32, copy=True, memory_format=torch.contiguous_format)
    tokens, heads, head_dim = out.shape
    half = cos.shape[-1] // 2
    cos, sin = cos.contiguous(), sin.contiguous()
    library().edgewise_rope(
        _Pointer(out.data_ptr()),
        _Pointer(cos.data_ptr()),
        _Pointer(sin.data_ptr() + half * sin.itemsize),
        ctypes.c_int64(2 * half),
        ctypes.c_int64(tokens),
        _Int(heads),
        _Int(head_dim),
        _Int(half),
    )
    return out
