"""Structs of src/kernels.h that more than one file hands to the library."""

from __future__ import annotations

import ctypes

import torch

from edgewise.kernels.native.packed import PackedMatrix


class Matrix(ctypes.Structure):
    """`Matrix`; without rows it stands for none."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        *((name, ctypes.c_int32) for name in ("rows", "cols", "format")),
    )


def matrix_of(matrix: PackedMatrix, bias: torch.Tensor | None = None) -> Matrix:
    """What must outlive it: the matrix and its bias."""
    address = None if bias is None else bias.data_ptr()
    return Matrix(matrix.data.data_ptr(), address, matrix.rows, matrix.cols, int(matrix.format))
