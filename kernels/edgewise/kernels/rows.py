"""How many rows a matrix product is computed with, so that a row's bits do not depend on its neighbours.

BLAS libraries choose their inner kernel, its blocking and its threads by the number of rows, and with them the order of
additions. Which numbers of rows agree differs from one processor and library to the next (measured: multiples of 8 agree in
float32 on an AMD EPYC 9004; a Xeon with AMX needs 16 on one thread, and no multiple at all helps it on several). So it is
measured on the model's own weights when a model is loaded, and the cheapest way that keeps the promise is taken. The last
resort keeps it by construction: tiles of exactly the same shape, one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from edgewise.kernels.limits import GPU_ROW_MULTIPLES, MAX_ROW_MULTIPLE, PRODUCT_ROW_MULTIPLE, ROW_MULTIPLE, round_up

_NAMES = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}
# Batches up to the first number are padded to the rule's multiple, up to the second to 8, longer ones to more: libraries keep
# compiled code for every number of rows that they meet, half a megabyte each (`kernels.limits.PRODUCT_CACHE_BYTES`).
_FINE, _MEDIUM = 16, 64
_TOP = 512  # rows of the longest product measured
_MEASURE_MACS = {"cpu": 12e9, "cuda": 2e12}  # a fraction of a second on two cores, or on a small GPU
# Elements of one product: measuring must not raise the peak of loading, or on a GPU take more than the workspace that follows.
_MEASURE_OUTPUTS = {"cpu": 1 << 21, "cuda": 1 << 24}

Product = Callable[[torch.Tensor, torch.Tensor, "Rows"], torch.Tensor]


@dataclass(frozen=True, slots=True)
class Rows:
    """A rule for the rows of a product.

    Attributes:
        multiple: Rows are padded to a multiple of this.
        tile: Products are computed in tiles of exactly this many rows; None computes all rows at once.
        proven: A measurement on this machine found rows independent of their neighbours under this rule.
    """

    multiple: int
    tile: int | None = None
    proven: bool = False

    def padded(self, count: int) -> int:
        """Rows that are computed for `count`; a caller that pads once to this saves a copy in every product."""
        grain = 1 if count <= _FINE else 8 if count <= _MEDIUM else PRODUCT_ROW_MULTIPLE
        return round_up(count, max(self.multiple, grain))


def default_rows(dtype: torch.dtype) -> Rows:
    """The cheapest rule that held on some machine; not proven for this one."""
    return Rows(ROW_MULTIPLE[_NAMES[dtype]])


def measure_rows(weights: Sequence[torch.Tensor], product: Product) -> Rows:
    """The cheapest rule under which this machine's products of `weights` are independent of the batch.

    Args:
        weights: [out, in] matrices, one of each shape that matters; all of one dtype and device.
        product: `linear` of rows, weight and rule.

    Returns:
        A proven rule; where none is found (cuBLAS on large matrices) the default, not proven.
    """
    dtype, device = weights[0].dtype, weights[0].device
    for rows in candidates(dtype, device.type):
        if all(independent(weight, rows, product) for weight in weights):
            return Rows(rows.multiple, rows.tile, proven=True)
    return default_rows(dtype)


def candidates(dtype: torch.dtype, device: str) -> list[Rows]:
    """What is tried on "cpu" or "cuda", the cheapest first."""
    found = [default_rows(dtype), Rows(MAX_ROW_MULTIPLE)]
    if device == "cpu":
        return [*found, Rows(MAX_ROW_MULTIPLE, tile=MAX_ROW_MULTIPLE)]
    # Tiles would launch a kernel for every 16 rows of a prompt, which costs more than the promise is worth.
    return [*found, *(Rows(multiple) for multiple in GPU_ROW_MULTIPLES)]


@torch.inference_mode()
def independent(weight: torch.Tensor, rows: Rows, product: Product) -> bool:
    """Whether rows of products with `weight` have the same bits in batches of many sizes, under one rule."""
    generator = torch.Generator().manual_seed(1)
    counts = _counts(rows, weight)
    x = torch.randn((counts[-1], weight.shape[1]), generator=generator).to(weight.device, weight.dtype)
    whole = product(x, weight, rows)
    return all(torch.equal(product(x[:count], weight, rows), whole[:count]) for count in counts[:-1])


def _counts(rows: Rows, weight: torch.Tensor) -> list[int]:
    """Row counts to compare, ascending: dense where batches of decoding streams lie, sparse above, as far as affordable."""
    counts = sorted({1, 3, *(rows.padded(count) for count in range(1, _TOP + 1))})
    while len(counts) > 4 and not _affordable(counts, weight):
        # The longest go first, then every second one: the batches that decoding meets are kept.
        counts = counts[:-1] if counts[-1] > _MEDIUM else sorted({*counts[::2], counts[-1]})
    return counts


def _affordable(counts: list[int], weight: torch.Tensor) -> bool:
    device = weight.device.type
    return (
        sum(counts) * weight.numel() <= _MEASURE_MACS[device] / 5
        and counts[-1] * weight.shape[0] <= _MEASURE_OUTPUTS[device]
    )
