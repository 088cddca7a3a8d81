"""Low-rank adapters packed for a decoder's step (src/adapters.cpp)."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Literal

import numpy as np
import torch

from edgewise.kernels.low_rank import LowRank
from edgewise.kernels.native.formats import WeightFormat, packed_bytes
from edgewise.kernels.native.packed import PackedMatrix
from edgewise.kernels.native.structs import Matrix, matrix_of

Product = Literal["qkv", "output", "gate_up", "down"]
PRODUCTS: Final[tuple[Product, ...]] = ("qkv", "output", "gate_up", "down")
_ALIGNMENT = 64


class _LowRank(ctypes.Structure):
    """`LowRank` in src/plan.h."""

    _fields_ = (("down", Matrix), ("up", Matrix * 3))


class PackedAdapter:
    """An adapter's matrices in float32, in panels as those of the products that they change.

    Attributes:
        nbytes: Of all matrices.
        address: Where the library finds them.
    """

    def __init__(
        self, pairs: Mapping[tuple[int, Product], tuple[torch.Tensor, Sequence[torch.Tensor]]], layers: int
    ) -> None:
        """
        Args:
            pairs: By layer and product: down [rank, in], and up [rows, rank] of each matrix of the product, float32.
            layers: Of the decoder.
        """
        self.nbytes = sum(map(_size, _matrices(pairs)))
        room = torch.from_numpy(np.zeros(self.nbytes + _ALIGNMENT, dtype=np.uint8))
        self._room = room[-room.data_ptr() % _ALIGNMENT :][: self.nbytes]
        self._table = (_LowRank * (len(PRODUCTS) * layers))()
        self.address = ctypes.addressof(self._table)
        at = 0
        for (layer, product), (down, ups) in pairs.items():
            entry = self._table[layer * len(PRODUCTS) + PRODUCTS.index(product)]
            entry.down, at = self._packed(down, at)
            for part, up in enumerate(ups):
                entry.up[part], at = self._packed(up, at)

    def __repr__(self) -> str:
        return f"PackedAdapter({self.nbytes} bytes)"

    def _packed(self, values: torch.Tensor, at: int) -> tuple[Matrix, int]:
        (rows, cols), size = values.shape, _size(values)
        matrix = PackedMatrix(self._room[at : at + size], rows, cols, WeightFormat.FLOAT32)
        matrix.pack_rows(values, 0)
        return matrix_of(matrix), at + size


def _size(matrix: torch.Tensor) -> int:
    return packed_bytes(matrix.shape[0], matrix.shape[1], WeightFormat.FLOAT32)


def _matrices(
    pairs: Mapping[tuple[int, Product], tuple[torch.Tensor, Sequence[torch.Tensor]]],
) -> Iterator[torch.Tensor]:
    for down, ups in pairs.values():
        yield down
        yield from ups


def check_pair(pair: LowRank, rows: int, cols: int) -> None:
    """Raises ValueError unless the matrices are those of a product [rows, cols], of an even rank."""
    rank = pair.down.shape[0]
    if pair.down.shape != (rank, cols) or pair.up.shape != (rows, rank) or rank % 2 or pair.down.dtype != torch.float32:
        raise ValueError(
            f"an adapter of a product [{rows}, {cols}] is float32 [rank, {cols}] and [{rows}, rank] of an even rank, got "
            f"{tuple(pair.down.shape)} and {tuple(pair.up.shape)} {pair.down.dtype}"
        )
