"""Matrix product of activation rows with a weight, the same for a row whatever rows stand beside it."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from edgewise.kernels.limits import QUERY_ROW_MULTIPLE, TILE_TOKENS
from edgewise.kernels.reference import linear as reference
from edgewise.kernels.rows import Rows, default_rows, measure_rows

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def linear(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, rows: Rows | None = None
) -> torch.Tensor:
    """x @ weight.T + bias.

    Args:
        x: [rows, in], float32, bfloat16 or float16.
        weight: [out, in], the dtype of `x`.
        bias: [out] or None, the dtype of `x`.
        rows: How many rows to compute with; None takes `default_rows`.

    Returns:
        [rows, out], the dtype of `x`.

    Raises:
        ValueError: Shapes or dtypes do not agree.
    """
    if x.dim() != 2 or weight.dim() != 2 or x.shape[1] != weight.shape[1]:
        raise ValueError(f"x must be [rows, in] and weight [out, in], got {tuple(x.shape)} and {tuple(weight.shape)}")
    if x.dtype not in _DTYPES or weight.dtype != x.dtype or (bias is not None and bias.dtype != x.dtype):
        raise ValueError(f"x, weight and bias must share float32, bfloat16 or float16; got {x.dtype}, {weight.dtype}")
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ValueError(f"bias must be [{weight.shape[0]}], got {tuple(bias.shape)}")
    return reference.linear(x, weight, bias, rows or default_rows(x.dtype))


def measure(weights: Sequence[torch.Tensor]) -> Rows:
    """`rows.measure_rows` over this module's product."""
    return measure_rows(weights, lambda x, weight, rows: linear(x, weight, None, rows))


@torch.inference_mode()
def tiles_invariant(device: torch.device) -> bool:
    """Measure (in a few ms) whether attention's tile products give a row the same bits alone and among others.

    Weight products are measured by `measure`. Everything else in the reference is elementwise or reduces rows of fixed shape in
    fixed order.
    """
    generator = torch.Generator().manual_seed(1)
    queries, keys = (torch.randn(shape, generator=generator).to(device) for shape in ((64, 64), (6, TILE_TOKENS, 64)))

    def scores(rows: int, tiles: int) -> torch.Tensor:
        return torch.bmm(queries[:rows].expand(tiles, -1, -1).contiguous(), keys[:tiles].transpose(1, 2))

    one = scores(QUERY_ROW_MULTIPLE, 1)[0]
    alike = all(torch.equal(scores(rows, tiles)[0, : one.shape[0]], one) for rows, tiles in ((8, 6), (64, 1), (64, 6)))
    weighted = torch.bmm(one[None], keys[:1])[0]
    many = torch.bmm(scores(64, 6), keys)[0, : one.shape[0]]
    return alike and torch.equal(weighted, many)
