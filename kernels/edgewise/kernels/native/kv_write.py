"""`kernels.kv_write` on the CPU in C++ (src/rowwise.inc.h): the same bits as the reference."""

from __future__ import annotations

import ctypes

import torch

from edgewise.kernels.native.faults import refuse
from edgewise.kernels.native.library import library
from edgewise.kernels.native.pages import pages
from edgewise.kernels.paging import KVLayer

_Pointer, _Size = ctypes.c_void_p, ctypes.c_int64


def write(kv: KVLayer, k: torch.Tensor, v: torch.Tensor, slots: torch.Tensor) -> None:
    """As `kernels.kv_write.write_kv`, which checks the arguments.

    Raises:
        NativeUnavailable: There is no library.
        ValueError: The pages cannot be used, or a slot lies outside.
    """
    k, v, slots = (tensor.contiguous() for tensor in (k.float(), v.float(), slots))
    stride, into = _Size(k.shape[1] * k.shape[2]), pages(kv)
    fault = library().edgewise_kv_write(
        ctypes.byref(into),
        _Pointer(k.data_ptr()),
        stride,
        _Pointer(v.data_ptr()),
        stride,
        _Pointer(slots.data_ptr()),
        _Size(k.shape[0]),
    )
    if fault:
        refuse(fault, num_pages=into.pages, slots=slots)
