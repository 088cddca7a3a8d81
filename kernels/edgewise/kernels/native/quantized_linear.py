from __future__ import annotations

import ctypes
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
    loaded.edgewise_linear.argtypes = [
        *(_Pointer, _Int, _Int, _Int, _Pointer),  # the matrix and its bias
        *(_Pointer, _Int, _Pointer, _Float),  # activations and a norm
        *(_Int, _Pointer, _Pointer, _Long),  # epilogue, scratch and output
    ]
    loaded.edgewise_linear.restype = None
    return loaded


class BoundCall:
    """A call of the library for contiguous tensors, which it keeps; measurements repeat it without Python's share.

    Attributes:
        out: Where the product goes.
        scratch: The rounded activations of the last call.
    """

    def __init__(
        self, x: torch.Tensor, weight: PackedMatrix, bias: torch.Tensor | None, epilogue: str, out: torch.Tensor
    ) -> None:
        size = _typed().edgewise_linear_scratch(len(x), weight.cols, weight.format)
        self.out = out
        self.scratch = torch.empty(size, dtype=torch.uint8)
        self._kept = (x, weight, bias)
        self._function = _typed().edgewise_linear
        self._arguments = (
            *(weight.data.data_ptr(), weight.rows, weight.cols, weight.format),
            *(None if bias is None else bias.data_ptr(), x.data_ptr(), len(x), None, 0.0),
            *(EPILOGUES[epilogue], self.scratch.data_ptr(), out.data_ptr(), out.shape[1]),
        )

    def __call__(self) -> None:
        self._function(*self._arguments)


def quantized_linear(x: torch.Tensor, weight: PackedMatrix, bias: torch.Tensor | None, epilogue: str) -> torch.Tensor:
    """On the process's pool."""
    out = torch.empty((len(x), weight.rows if epilogue == "store" else weight.rows // 2))
    if len(x):
        BoundCall(x.contiguous(), weight, None if bias is None else bias.contiguous(), epilogue, out)()
    return out
