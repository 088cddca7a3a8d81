from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache

import torch

from edgewise.kernels.native.library import library
from edgewise.kernels.native.packed import PackedMatrix

EPILOGUES = {"store": 0, "silu_mul": 2, "gelu_mul": 3}  # numbers of kernels.h
_Pointer, _Int, _Float, _Long = ctypes.c_void_p, ctypes.c_int32, ctypes.c_float, ctypes.c_int64


@cache
def _typed() -> ctypes.CDLL:
    loaded = library()
    loaded.edgewise_linear_scratch.argtypes = [_Long, _Long, _Int]
    loaded.edgewise_linear_scratch.restype = _Long
    matrix, activations = [_Pointer, _Int, _Int, _Int, _Pointer], [_Pointer, _Int, _Pointer, _Float]
    loaded.edgewise_linear.argtypes = [*matrix, *activations, _Int, _Pointer, _Pointer, _Long]
    loaded.edgewise_linear.restype = None
    return loaded


def bound_call(
    x: torch.Tensor, weight: PackedMatrix, bias: torch.Tensor | None, epilogue: str, out: torch.Tensor
) -> Callable[[], None]:
    """The call of the library for contiguous tensors, which it keeps; measurements repeat it without Python's share."""
    size = _typed().edgewise_linear_scratch(len(x), weight.cols, weight.format)
    scratch = torch.empty(size, dtype=torch.uint8)
    kept = (x, weight, bias, out, scratch)
    arguments = (
        *(weight.data.data_ptr(), weight.rows, weight.cols, weight.format, None if bias is None else bias.data_ptr()),
        *(x.data_ptr(), len(x), None, 0.0),
        *(EPILOGUES[epilogue], scratch.data_ptr(), out.data_ptr(), out.shape[1]),
    )
    function = _typed().edgewise_linear

    def call(_kept: object = kept) -> None:
        function(*arguments)

    return call


def quantized_linear(x: torch.Tensor, weight: PackedMatrix, bias: torch.Tensor | None, epilogue: str) -> torch.Tensor:
    """On the process's pool."""
    out = torch.empty((len(x), weight.rows if epilogue == "store" else weight.rows // 2))
    if len(x):
        bound_call(x.contiguous(), weight, None if bias is None else bias.contiguous(), epilogue, out)()
    return out
