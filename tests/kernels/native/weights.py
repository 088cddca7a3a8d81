"""Packed matrices of any format: rounded from random floats, or of random GGUF blocks where a format holds only those."""

from __future__ import annotations

import gguf
import numpy as np
import torch

from edgewise.kernels.limits import round_up
from edgewise.kernels.native.formats import GROUP, SUPER, WeightFormat
from edgewise.kernels.native.packed import PackedMatrix, alternate, pack, pack_gate_up

BLOCKS = {
    WeightFormat.INT8_MIN: "Q5_1",
    WeightFormat.INT4_K: "Q4_K",
    WeightFormat.INT8_K: "Q5_K",
    WeightFormat.INT8_K16: "Q6_K",
}
# Of a block: columns, bytes, and where its float16 numbers stand.
LAYOUTS = {
    "Q4_0": (32, 18, (0,)),
    "Q4_1": (32, 20, (0, 2)),
    "Q5_0": (32, 22, (0,)),
    "Q5_1": (32, 24, (0, 2)),
    "Q8_0": (32, 34, (0,)),
    "Q4_K": (256, 144, (0, 2)),
    "Q5_K": (256, 176, (0, 2)),
    "Q6_K": (256, 210, (208,)),
}


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def random_blocks(kind: str, rows: int, cols: int, seed: int = 0) -> torch.Tensor:
    """[rows, bytes]: any codes and factors, scales and minima of which products are of the order of 1."""
    columns, size, halves = LAYOUTS[kind]
    generator = torch.Generator().manual_seed(seed)
    raw = torch.randint(0, 256, (rows, cols // columns, size), generator=generator, dtype=torch.uint8)
    for at in halves:
        numbers = torch.randn((rows, cols // columns), generator=generator) * (1e-3 if columns == SUPER else 0.1)
        raw[:, :, at : at + 2] = numbers.half().view(torch.uint8).view(rows, -1, 2)
    return raw.flatten(1)


def values_of(raw: torch.Tensor, kind: str) -> torch.Tensor:
    """What blocks stand for, by ggml's own package."""
    return torch.from_numpy(gguf.dequantize(raw.numpy(), gguf.GGMLQuantizationType[kind]).astype(np.float32))


def fitting(cols: int, weight_format: WeightFormat) -> int:
    """Columns that a format can have, at least `cols`."""
    if weight_format.takes_floats:
        return cols
    return round_up(cols, SUPER if weight_format.has_factors else GROUP)


def packed(rows: int, cols: int, weight_format: WeightFormat, seed: int = 0) -> PackedMatrix:
    """A matrix [rows, fitting(cols)] of random numbers."""
    cols = fitting(cols, weight_format)
    if weight_format.takes_floats:
        return pack(random(rows, cols, seed=seed), weight_format)
    kind = BLOCKS[weight_format]
    matrix = PackedMatrix.zeros(rows, cols, weight_format)
    matrix.pack_blocks(random_blocks(kind, rows, cols, seed), kind, 0)
    return matrix


def packed_gate_up(rows: int, cols: int, weight_format: WeightFormat) -> PackedMatrix:
    """Two matrices of `packed` in one, for gated products."""
    cols = fitting(cols, weight_format)
    if weight_format.takes_floats:
        return pack_gate_up(random(rows, cols), random(rows, cols, seed=1), weight_format)
    kind = BLOCKS[weight_format]
    both = alternate(*(random_blocks(kind, rows, cols, seed) for seed in (0, 1)))
    matrix = PackedMatrix.zeros(len(both), cols, weight_format)
    matrix.pack_blocks(both, kind, 0)
    return matrix
