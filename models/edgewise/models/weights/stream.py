"""Decode a range of a file into a tensor, a piece at a time, so that loading needs no second copy of anything large."""

from __future__ import annotations

import sys

import numpy as np
import torch

from edgewise.core.errors import UnsupportedModel
from edgewise.models.weights.dequant import CODECS
from edgewise.models.weights.file import RangeFile
from edgewise.models.weights.reader import TensorInfo

# Types whose bytes are a tensor's own on little-endian machines.
_AS_STORED = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
PIECE_ELEMENTS = 1 << 18  # 1 MiB of float32; with raw bytes and intermediates under 4 MiB of scratch


def decode_rows(file: RangeFile, info: TensorInfo, offset: int, out: torch.Tensor, first_row: int) -> None:
    """Decode rows [first_row, first_row + out.shape[0]) of the tensor whose bytes start at `offset` into `out`.

    Args:
        out: CPU, contiguous, shape [rows, *info.shape[1:]] (or [] for a scalar). Floats go to any float dtype, rounded to
            nearest; integers and bools to any dtype.

    Raises:
        UnsupportedModel: The tensor's encoding cannot be decoded.
        BadModelFile: The file is shorter than it was.
        ValueError: `out` does not fit.
    """
    codec = CODECS.get(info.type)
    if codec is None:
        can = ", ".join(CODECS)
        raise UnsupportedModel(f"{file.name}, tensor '{info.name}': {info.type} weights cannot be read; {can} can")
    check_target(info, out, first_row)
    row_elements = out[0].numel() if out.ndim and out.shape[0] else 1
    position = offset + first_row * row_elements // codec.block * codec.block_bytes
    flat = out.view(-1)
    if _AS_STORED.get(info.type) == out.dtype and sys.byteorder == "little":
        file.read_into(position, flat.view(torch.uint8).numpy().data)
        return
    raw = np.empty(min(PIECE_ELEMENTS, max(flat.numel(), codec.block)) // codec.block * codec.block_bytes, np.uint8)
    for start in range(0, flat.numel(), PIECE_ELEMENTS):
        target = flat[start : start + PIECE_ELEMENTS]
        piece = raw[: target.numel() // codec.block * codec.block_bytes]
        file.read_into(position, piece.data)
        position += piece.nbytes
        _store(codec.decode(piece), info, target)


def _store(values: np.ndarray[tuple[int, ...], np.dtype[np.generic]], info: TensorInfo, target: torch.Tensor) -> None:
    source = torch.from_numpy(values)
    if source.is_floating_point() and not target.is_floating_point():
        raise ValueError(f"tensor '{info.name}' holds {info.type}, it cannot be read into {target.dtype}")
    target.copy_(source)


def check_target(info: TensorInfo, out: torch.Tensor, first_row: int) -> None:
    """ValueError unless `out` can take those rows of the tensor."""
    if out.device.type != "cpu" or not out.is_contiguous():
        raise ValueError(f"tensor '{info.name}' must be read into a contiguous tensor in CPU memory")
    if tuple(out.shape[1:]) != info.shape[1:] or out.ndim != len(info.shape):
        raise ValueError(f"tensor '{info.name}' has the shape {info.shape}, it does not fit {tuple(out.shape)}")
    rows = out.shape[0] if out.ndim else 1
    if first_row < 0 or first_row + rows > (info.shape[0] if info.shape else 1):
        raise ValueError(f"rows {first_row} to {first_row + rows} of tensor '{info.name}' with shape {info.shape}")
