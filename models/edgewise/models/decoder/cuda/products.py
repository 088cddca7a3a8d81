"""Products of prompts: the library's, over weights that are unpacked a slice at a time where they are rounded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from edgewise.kernels.linear import linear, measure
from edgewise.kernels.rows import Rows
from edgewise.kernels.triton.decode_product import Weight
from edgewise.kernels.triton.weights import unpack

_SLICE = 1 << 26  # elements of a weight that are unpacked at a time


def long_product(x: torch.Tensor, weight: Weight, rows: Rows) -> torch.Tensor:
    """x [T, in] @ weight.T + bias, [T, out] in the dtype of `x`; `rows` as of `kernels.linear`."""
    if weight.scale is None:
        return linear(x, weight.codes, weight.bias, rows)
    parts = [linear(x, floats, bias, rows) for floats, bias in _slices(weight, x.dtype)]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)


def measure_products(weights: list[Weight]) -> Rows:
    """`kernels.linear.measure` of matrices, of one slice of each shape of rounded ones."""
    floats = [floats for weight in weights for floats in _shapes(weight)]
    return measure(floats)


def _shapes(weight: Weight) -> list[torch.Tensor]:
    """What the library multiplies with, one of each shape: all slices but the last have the same."""
    if weight.scale is None:
        return [weight.codes]
    cuts = _cuts(weight)
    one_of_each = {cut.stop - cut.start: cut for cut in (cuts[0], cuts[-1])}
    return [_unpacked(weight, cut, torch.bfloat16) for cut in one_of_each.values()]


def _slices(weight: Weight, dtype: torch.dtype) -> Iterator[tuple[torch.Tensor, torch.Tensor | None]]:
    """Rows of the matrix in floats, with their biases."""
    for cut in _cuts(weight):
        yield _unpacked(weight, cut, dtype), None if weight.bias is None else weight.bias[cut]


def _cuts(weight: Weight) -> list[slice]:
    rows, step = weight.codes.shape[0], max(1, _SLICE // weight.columns)
    return [slice(first, min(first + step, rows)) for first in range(0, rows, step)]


def _unpacked(weight: Weight, cut: slice, dtype: torch.dtype) -> torch.Tensor:
    assert weight.scale is not None
    part = replace(
        weight,
        codes=weight.codes[cut],
        scale=weight.scale[cut],
        minimum=None if weight.minimum is None else weight.minimum[cut],
    )
    out = torch.empty((part.codes.shape[0], weight.columns), dtype=dtype, device=weight.codes.device)
    return unpack(part, out)
