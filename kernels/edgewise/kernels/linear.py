"""Matrix product of activation rows with a weight, the same for a row whatever rows stand beside it."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from edgewise.kernels.limits import QUERY_ROW_MULTIPLE, TILE_TOKENS
from edgewise.kernels.reference import linear as reference
from edgewise.kernels.rms_norm import rms_norm
from edgewise.kernels.row_sum import row_sum
from edgewise.kernels.rows import Rows, default_rows, independent, measure_rows
from edgewise.kernels.tile_product import tile_product

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
    """`rows.measure_rows` over this module's product; on CUDA, where a bias selects other kernels, with one and without."""
    return measure_rows(weights, _both_ways if weights[0].device.type == "cuda" else _plain)


def holds(weights: Sequence[torch.Tensor], rows: Rows) -> bool:
    """Whether products of `weights` are independent of the batch under a rule that was found elsewhere; measured as `measure`."""
    product = _both_ways if weights[0].device.type == "cuda" else _plain
    return all(independent(weight, rows, product) for weight in weights)


def _plain(x: torch.Tensor, weight: torch.Tensor, rows: Rows) -> torch.Tensor:
    return linear(x, weight, None, rows)


def _both_ways(x: torch.Tensor, weight: torch.Tensor, rows: Rows) -> torch.Tensor:
    bias = weight.select(1, 0).contiguous()
    return torch.cat((linear(x, weight, None, rows), linear(x, weight, bias, rows)), dim=1)


@torch.inference_mode()
def tiles_invariant(device: torch.device) -> bool:
    """Measure (in a few ms) whether attention and norms give a row the same bits alone and among others.

    Measured are the products, sums and norms that are in use on `device`; weight products by `measure`. Everything else in the
    reference is elementwise or reduces rows of fixed shape in fixed order.
    """
    generator = torch.Generator().manual_seed(1)
    queries, keys = (torch.randn(shape, generator=generator).to(device) for shape in ((64, 64), (6, TILE_TOKENS, 64)))

    def scores(rows: int, tiles: int) -> torch.Tensor:
        return tile_product(queries[:rows].expand(tiles, -1, -1).contiguous(), keys[:tiles].transpose(1, 2))

    one, many = scores(QUERY_ROW_MULTIPLE, 1), scores(64, 6)
    found = [(one, scores(rows, tiles)) for rows, tiles in ((8, 6), (64, 1), (64, 6))]
    found += [(tile_product(one, keys[:1]), tile_product(many, keys)), (row_sum(one), row_sum(many))]
    for columns in (64, 4096):
        x, weight = torch.randn((64, columns), generator=generator).to(device), torch.ones(columns, device=device)
        norms = rms_norm(x, weight, 1e-6)
        found += [(rms_norm(x[:count], weight, 1e-6)[None], norms[None]) for count in (1, 3, 16)]
    return all(torch.equal(whole[0, : alone.shape[1]], alone[0]) for alone, whole in found)
