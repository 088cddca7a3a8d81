"""One interface over weight files, so that loading code does not know the format."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A stored tensor. `shape` is row-major as PyTorch sees it; `type` is the file's name of its encoding (F32, BF16, Q4_1)."""

    name: str
    shape: tuple[int, ...]
    type: str
    nbytes: int


class WeightReader(Protocol):
    """Random access to the tensors of a model. Closing releases files and maps."""

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """By the file's own tensor names."""

    def read_into(self, name: str, out: torch.Tensor, *, first_row: int = 0) -> None:
        """Decode rows [first_row, first_row + out.shape[0]) of a tensor into `out`, converting to its dtype (CPU, contiguous).

        Reads only those rows, with bounded scratch memory (at most a few MiB), and leaves no file pages mapped behind.

        Raises:
            BadModelFile: The file is damaged; message names file, tensor and byte.
        """

    def close(self) -> None: ...


@runtime_checkable
class BlockReader(Protocol):
    """A reader that need not read whole rows."""

    def read_block(self, name: str, rows: tuple[int, int], columns: tuple[int, int]) -> NDArray[Any]:
        """See `models.weights.safetensors.SafetensorsReader.read_block`."""


@runtime_checkable
class Fp8Reader(Protocol):
    """A reader some of whose matrices are stored in fp8 (e4m3) with one scale for a row, or for all of them."""

    def read_fp8(self, name: str, first_row: int, rows: int) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Codes [rows, columns] float8_e4m3fn as the file stores them and scales [rows] float32; None if stored otherwise.

        Raises:
            BadModelFile: The file is shorter than it was, or a number is not finite.
        """


@runtime_checkable
class RawReader(Protocol):
    """A reader whose matrices are stored row by row in the blocks that `TensorInfo.type` names."""

    def read_raw(self, name: str, first_row: int, rows: int) -> NDArray[np.uint8]:
        """[rows, bytes of a row] as the file stores them, of a tensor with at least one dimension.

        Raises:
            BadModelFile: The file is shorter than it was.
        """
