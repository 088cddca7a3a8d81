"""Matrix product of activation rows with a weight, both in fp8 (e4m3): the format "fp8" of weights.

A row of either has one scale, max|x| / 448; its codes are x * (448 / max|x|) to the nearest number of e4m3, half to even
(Micikevicius et al. 2022, "FP8 Formats for Deep Learning"). A row below 2^-119 becomes zeros. So nothing saturates but what
rounds to 448 itself. Rows of activations are rounded as they come ("dynamic per token"), rows of weights once, at load. A NaN or
an infinity in a row of activations makes every output of that row NaN and touches no other row.

Three forms compute the same numbers up to the order and the width of their sums: the reference has exact sums; `triton` adds in
float32, in an order that the shape of the weight alone decides; the library's product (`torch._scaled_mm`) promises nothing about
its order, so `measure` finds out on the card at hand whether a row's bits are its own there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
import torch.nn.functional as F  # noqa: N812 - the name everybody uses

from edgewise.core.log import get_logger
from edgewise.kernels.reference import fp8_linear as reference
from edgewise.kernels.reference.fp8_linear import MOST, round_rows
from edgewise.kernels.rows import Rows, candidates, independent

Fp8BackEnd = Literal["reference", "triton", "library"]

TILE_ROWS = 128
"""Rows of a program of `triton`: how its tiles are cut does not depend on the number of rows."""
OWN_TILES = Rows(1, tile=TILE_ROWS, proven=True)
"""The rule of `triton`'s product, whose rows are apart by construction."""

_AGREES = 1e-2  # relative error of the library's products to ours, in bfloat16
_FLOATS = (torch.float32, torch.bfloat16, torch.float16)

__all__ = ["MOST", "OWN_TILES", "TILE_ROWS", "Fp8BackEnd", "Fp8Weight", "fp8_linear", "measure", "round_rows"]

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Fp8Weight:
    """Attributes:
    codes: [out, in] float8_e4m3fn, contiguous.
    scale: [out] float32; the values are codes * scale.
    bias: [out] or None, the dtype of the activations.
    """

    codes: torch.Tensor
    scale: torch.Tensor
    bias: torch.Tensor | None = None


def fp8_linear(
    x: torch.Tensor, weight: Fp8Weight, back_end: Fp8BackEnd = "reference", rows: Rows = OWN_TILES
) -> torch.Tensor:
    """x @ weight.T + bias, with the rows of x rounded to e4m3.

    Args:
        x: [rows, in] float32, bfloat16 or float16.
        weight: Of as many columns.
        back_end: "reference" on any device, "triton" and "library" on a card that computes with e4m3 (capability 8.9 and above).
        rows: Of the library: how many rows to compute with.

    Returns:
        [rows, out], the dtype of x; of the library rounded to bfloat16.

    Raises:
        ValueError: Shapes or dtypes do not agree.
        RuntimeError: The library has no such product here.
    """
    codes, scale = weight.codes, weight.scale
    if x.dim() != 2 or codes.dim() != 2 or x.shape[1] != codes.shape[1] or x.dtype not in _FLOATS:
        raise ValueError(f"x must be floats [rows, {codes.shape[-1]}], got {tuple(x.shape)} {x.dtype}")
    if codes.dtype != torch.float8_e4m3fn or not codes.is_contiguous():
        raise ValueError(f"codes must be float8_e4m3fn, contiguous, got {codes.dtype}")
    if scale.shape != codes.shape[:1] or scale.dtype != torch.float32:
        raise ValueError(f"scales must be [{codes.shape[0]}] float32, got {tuple(scale.shape)} {scale.dtype}")
    if weight.bias is not None and (weight.bias.shape != codes.shape[:1] or weight.bias.dtype != x.dtype):
        raise ValueError(
            f"bias must be [{codes.shape[0]}] {x.dtype}, got {tuple(weight.bias.shape)} {weight.bias.dtype}"
        )
    if back_end == "reference":
        return reference.fp8_linear(*round_rows(x), codes, scale, weight.bias, x.dtype)
    from edgewise.kernels.triton import fp8_product as kernels

    own, step = kernels.round_rows(x)
    if back_end == "triton":
        return kernels.long_product(own, step, codes, scale, weight.bias, x.dtype, TILE_ROWS)
    return _library(own, step, weight, rows).to(x.dtype)


def _library(own: torch.Tensor, step: torch.Tensor, weight: Fp8Weight, rows: Rows) -> torch.Tensor:
    """Sums in float32 ("fast accumulation" is off), scaled before they are rounded."""
    count = own.shape[0]
    missing = rows.padded(count) - count
    padded = F.pad(own.view(torch.uint8), (0, 0, 0, missing)).view(torch.float8_e4m3fn)
    bias = None if weight.bias is None else weight.bias.to(torch.bfloat16)
    product: torch.Tensor = torch._scaled_mm(
        padded,
        weight.codes.t(),
        scale_a=F.pad(step, (0, missing))[:, None],
        scale_b=weight.scale[None, :],
        bias=bias,
        out_dtype=torch.bfloat16,
        use_fast_accum=False,
    )
    return product[:count]


@torch.inference_mode()
def measure(weights: Sequence[Fp8Weight]) -> Rows:
    """How products of many rows with `weights`, one of each shape, are computed on their device: the library's, by the rule
    returned, if it is there, agrees with ours and gives a row the same bits in batches of all sizes; else `OWN_TILES`."""
    device = weights[0].codes.device
    reason = "a row's bits depend on the batch"
    for rows in candidates(torch.bfloat16, device.type):
        if rows.tile is not None:
            continue
        try:
            if not all(_agrees(weight, rows) for weight in weights):
                reason = "its results differ from ours"
                break
            if all(_independent(weight, rows) for weight in weights):
                return replace(rows, proven=True)
        except (RuntimeError, ValueError, NotImplementedError) as error:
            reason = str(error).strip().partition("\n")[0]
            break
    log.info(
        "library_product_not_used",
        device=str(device),
        reason=reason,
        effect="products of prompts are computed in tiles",
    )
    return OWN_TILES


def _agrees(weight: Fp8Weight, rows: Rows) -> bool:
    x = _random(TILE_ROWS // 2 + 1, weight)
    ours, theirs = (fp8_linear(x, weight, form, rows).double() for form in ("triton", "library"))
    return float((theirs - ours).norm()) <= _AGREES * float(ours.norm())


def _independent(weight: Fp8Weight, rows: Rows) -> bool:
    """With a bias and without: it may select another kernel."""
    biased = replace(weight, bias=_random(1, weight)[0, :1].expand(weight.codes.shape[0]).contiguous())
    shape = torch.empty(1, dtype=torch.bfloat16, device=weight.codes.device).expand(weight.codes.shape)

    def product(x: torch.Tensor, _: torch.Tensor, rows: Rows) -> torch.Tensor:
        return torch.cat([fp8_linear(x, each, "library", rows) for each in (replace(weight, bias=None), biased)], dim=1)

    return independent(shape, rows, product)


def _random(rows: int, weight: Fp8Weight) -> torch.Tensor:
    generator = torch.Generator().manual_seed(2)
    return torch.randn((rows, weight.codes.shape[1]), generator=generator).to(weight.codes.device, torch.bfloat16)
