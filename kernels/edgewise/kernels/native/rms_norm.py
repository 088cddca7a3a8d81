"""`kernels.rms_norm` on the CPU in C++ (src/rowwise.inc.h)."""

from __future__ import annotations

import ctypes

import torch

from edgewise.kernels.native.library import library

_Pointer, _Size = ctypes.c_void_p, ctypes.c_int64


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float, dtype: torch.dtype) -> torch.Tensor:
    """As `kernels.rms_norm.rms_norm`, which checks the arguments.

    Raises:
        NativeUnavailable: There is no library.
    """
    x, weight = x.float().contiguous(), weight.contiguous()
    out = torch.empty_like(x)
    cols = x.shape[-1]
    if x.numel():
        library().edgewise_rms_norm(
            _Pointer(x.data_ptr()),
            _Pointer(weight.data_ptr()),
            _Size(weight.numel() // cols),
            ctypes.c_float(eps),
            _Size(x.numel() // cols),
            ctypes.c_int32(cols),
            _Pointer(out.data_ptr()),
        )
    return out.to(dtype)
