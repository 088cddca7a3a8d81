"""Products of prompts: the library's, over weights that are unpacked a slice at a time where they are rounded to integers. Those
in fp8 are multiplied as they are, by the library where its rows are proven to be apart, else in tiles of our own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from edgewise.kernels import fp8_linear
from edgewise.kernels.linear import linear, measure
from edgewise.kernels.rows import Rows
from edgewise.kernels.triton.decode_product import Weight
from edgewise.kernels.triton.weights import unpack

_SLICE = 1 << 26  # elements of a weight that are unpacked at a time


def long_product(x: torch.Tensor, weight: Weight, rows: Rows) -> torch.Tensor:
    """x [T, in] @ weight.T + bias, [T, out] in the dtype of `x`; `rows` as of `kernels.linear`, or of `kernels.fp8_linear`."""
    if weight.scale is None:
        return linear(x, weight.codes, weight.bias, rows)
    if weight.codes.dtype == torch.float8_e4m3fn:
        form: fp8_linear.Fp8BackEnd = "library" if rows.proven and rows.tile is None else "triton"
        return fp8_linear.fp8_linear(x, _fp8(weight), form, rows)
    parts = [linear(x, floats, bias, rows) for floats, bias in _slices(weight, x.dtype)]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)


def measure_products(weights: list[Weight]) -> Rows:
    """`kernels.linear.measure` of matrices, of one slice of each shape of rounded ones; `kernels.fp8_linear.measure` of fp8."""
    if weights[0].codes.dtype == torch.float8_e4m3fn:  # and so are all
        return fp8_linear.measure([_fp8(weight) for weight in weights])
    floats = [floats for weight in weights for floats in _shapes(weight)]
    return measure(floats)


def _fp8(weight: Weight) -> fp8_linear.Fp8Weight:
    assert weight.scale is not None
    return fp8_linear.Fp8Weight(weight.codes, weight.scale, weight.bias)


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
