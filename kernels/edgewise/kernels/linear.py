"""Matrix product of activation rows with a weight, the same for a row whatever rows stand beside it."""

from __future__ import annotations

import torch

from edgewise.kernels.limits import QUERY_ROW_MULTIPLE, ROW_MULTIPLE, TILE_TOKENS, round_up
from edgewise.kernels.reference import linear as reference

_NAMES = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}


def padded_rows(rows: int, dtype: torch.dtype) -> int:
    """Rows that `linear` computes for `rows`; a caller that pads once to this saves a copy in every product.

    BLAS libraries choose their inner kernel by the number of rows, and with it the order of additions. Multiples of 8
    (float32) and of 2 (16-bit) meet only kernels that agree.
    """
    return round_up(rows, ROW_MULTIPLE[_NAMES[dtype]])


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """x @ weight.T + bias.

    Args:
        x: [rows, in], float32, bfloat16 or float16.
        weight: [out, in], the dtype of `x`.
        bias: [out] or None, the dtype of `x`.

    Returns:
        [rows, out], the dtype of `x`.

    Raises:
        ValueError: Shapes or dtypes do not agree.
    """
    if x.dim() != 2 or weight.dim() != 2 or x.shape[1] != weight.shape[1]:
        raise ValueError(f"x must be [rows, in] and weight [out, in], got {tuple(x.shape)} and {tuple(weight.shape)}")
    if x.dtype not in _NAMES or weight.dtype != x.dtype or (bias is not None and bias.dtype != x.dtype):
        raise ValueError(f"x, weight and bias must share float32, bfloat16 or float16; got {x.dtype}, {weight.dtype}")
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ValueError(f"bias must be [{weight.shape[0]}], got {tuple(bias.shape)}")
    return reference.linear(x, weight, bias, padded_rows(x.shape[0], x.dtype))


def batch_invariant(dtype: torch.dtype, device: torch.device) -> bool:
    """Measure (in a few ms) whether this machine's products give a row the same bits alone and among others.

    Checks weight products in `dtype` and attention's tile products in float32, on shapes that meet the libraries'
    different kernels. Everything else in the reference is elementwise or reduces rows of fixed shape in fixed order.
    """
    generator = torch.Generator().manual_seed(1)

    def random(*shape: int, dtype: torch.dtype = dtype) -> torch.Tensor:
        return torch.randn(shape, generator=generator).to(device=device, dtype=dtype)

    products = all(_linear_invariant(random(72, k), random(n, k)) for n, k in ((96, 64), (320, 576), (64, 2304)))
    queries, keys = random(64, 64, dtype=torch.float32), random(6, TILE_TOKENS, 64, dtype=torch.float32)
    return products and _tiles_invariant(queries, keys)


def _linear_invariant(x: torch.Tensor, weight: torch.Tensor) -> bool:
    whole = linear(x, weight)
    return all(torch.equal(linear(x[:rows], weight), whole[:rows]) for rows in (1, 3, 8, 17, 32))


def _tiles_invariant(queries: torch.Tensor, keys: torch.Tensor) -> bool:
    def scores(rows: int, tiles: int) -> torch.Tensor:
        return torch.bmm(queries[:rows].expand(tiles, -1, -1).contiguous(), keys[:tiles].transpose(1, 2))

    one = scores(QUERY_ROW_MULTIPLE, 1)[0]
    alike = all(torch.equal(scores(rows, tiles)[0, : one.shape[0]], one) for rows, tiles in ((8, 6), (64, 1), (64, 6)))
    weighted = torch.bmm(one[None], keys[:1])[0]
    many = torch.bmm(scores(64, 6), keys)[0, : one.shape[0]]
    return alike and torch.equal(weighted, many)
