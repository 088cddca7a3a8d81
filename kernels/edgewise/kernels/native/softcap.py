"""`kernels.softcap` on the CPU in C++ (src/rowwise.inc.h)."""

from __future__ import annotations

import ctypes

import torch

from edgewise.kernels.native.library import library


def softcap_(logits: torch.Tensor, cap: float) -> torch.Tensor:
    """As `kernels.softcap.softcap`, which checks the arguments; `logits` must be contiguous.

    Raises:
        NativeUnavailable: There is no library.
        ValueError: `logits` is not contiguous.
    """
    if not logits.is_contiguous():
        raise ValueError("native kernels need contiguous logits")
    library().edgewise_softcap(ctypes.c_void_p(logits.data_ptr()), ctypes.c_int64(logits.numel()), ctypes.c_float(cap))
    return logits
