"""Weights in 8 and 4 bits on the card: rounding, GGUF's blocks as they are, and the way back.

Rounding is that of `kernels.native.packed` (int8 by max|x| / 127, 4 bits by 15 steps from the least to the largest of 32 values,
codes the nearest to the scale as it is stored), so a file gives the same numbers on both; that of fp8 is `kernels.fp8_linear`'s.
"""

from __future__ import annotations

from typing import Literal

import torch
import triton
import triton.language as tl

from edgewise.kernels.reference.fp8_linear import round_rows
from edgewise.kernels.triton.decode_product import GROUP, Weight

Format = Literal["int8", "int4", "fp8"]
_SLAB = 1 << 23  # elements that are rounded at a time
_COLUMNS = 1024
# GGUF's block types of 32 columns that are taken as they are: bytes of a block, and of its scales.
_BLOCKS = {"Q4_0": (18, 2), "Q4_1": (20, 4), "Q8_0": (34, 2)}


def quantize(matrix: torch.Tensor, to: Format, bias: torch.Tensor | None = None) -> Weight:
    """Round a weight [out, in] of floats, on the device where it lies, in slabs of rows.

    Args:
        matrix: [out, in] floating point; for int8 and int4 `in` is a multiple of 32.
        to: "int8" and "int4" have a scale for 32 columns, "fp8" (e4m3) has one for a row.
        bias: Passed on.

    Raises:
        ValueError: Another format or shape, or a value is not finite or too large for a float16 scale.
    """
    if to not in ("int8", "int4", "fp8"):
        raise ValueError(f"weights are rounded to int8, int4 or fp8, not to {to}")
    if matrix.dim() != 2 or (to != "fp8" and matrix.shape[1] % GROUP):
        raise ValueError(f"a weight must be [out, in], in a multiple of {GROUP}, got {tuple(matrix.shape)}")
    step = max(1, _SLAB // matrix.shape[1])
    parts = [_rounded(matrix[first : first + step].float(), to) for first in range(0, matrix.shape[0], step)]
    codes, scale, minimum = (torch.cat(each) for each in zip(*parts, strict=True))
    if not bool(scale.isfinite().all() & minimum.isfinite().all()):
        raise ValueError(f"a weight holds NaN, infinity or a value too large for {to}")
    return Weight(codes, scale, minimum if to == "int4" else None, bias)


def _rounded(x: torch.Tensor, to: Format) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Codes, scales and minima (zeros without meaning but for int4); not finite where x is not."""
    if to == "fp8":
        codes, scale = round_rows(x)
        return codes, scale, torch.zeros_like(scale)
    groups = x.view(x.shape[0], -1, GROUP)
    if to == "int8":
        half = (groups.abs().amax(dim=2) / 127.0).half()
        codes = (groups * _inverse(half)).round().clamp(-127, 127).to(torch.int8)
        return codes.view(x.shape), half, torch.zeros_like(half)
    least = groups.amin(dim=2).half()
    half = ((groups.amax(dim=2) - least.float()) / 15.0).half()
    codes = ((groups - least.float()[:, :, None]) * _inverse(half)).round().clamp(0, 15).to(torch.uint8)
    low, high = codes[:, :, : GROUP // 2], codes[:, :, GROUP // 2 :]
    return (low | high << 4).reshape(x.shape[0], -1), half, least


def _inverse(half: torch.Tensor) -> torch.Tensor:
    scale = half.float()
    return torch.where(scale == 0, 0.0, 1.0 / scale)[:, :, None]


def from_blocks(raw: torch.Tensor, kind: str, bias: torch.Tensor | None = None) -> Weight:
    """A weight stored in GGUF's blocks of type Q4_0, Q4_1 or Q8_0, without loss.

    Args:
        raw: uint8 [out, bytes of a row], on any device.
        kind: The block type.
        bias: Passed on.

    Raises:
        ValueError: Another type, or rows that are no whole blocks.
    """
    if kind not in _BLOCKS:
        raise ValueError(f"blocks of {kind} are not taken as they are; dequantize and use quantize")
    size, head = _BLOCKS[kind]
    if raw.dtype != torch.uint8 or raw.dim() != 2 or raw.shape[1] % size:
        raise ValueError(f"blocks of {kind} are uint8 [out, a multiple of {size}], got {tuple(raw.shape)} {raw.dtype}")
    blocks = raw.reshape(raw.shape[0], -1, size)
    heads = blocks[:, :, :head].contiguous().view(torch.float16)
    codes = blocks[:, :, head:].reshape(raw.shape[0], -1)
    scale = heads[:, :, 0].contiguous()
    if kind == "Q8_0":
        return Weight(codes.view(torch.int8), scale, None, bias)
    minimum = heads[:, :, 1].contiguous() if kind == "Q4_1" else -8.0 * scale  # exact: a power of two
    return Weight(codes, scale, minimum, bias)


@triton.jit
def _unpack(
    codes: tl.tensor,
    scales: tl.tensor,
    minima: tl.tensor,
    out: tl.tensor,
    columns: tl.constexpr,
    block: tl.constexpr,
) -> None:
    """Grid (out, columns / block)."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * block + tl.arange(0, block)
    mask = at < columns
    stored: tl.constexpr = codes.dtype.element_ty
    if stored == tl.float8e4nv:
        code = tl.load(codes + row * columns + at, mask=mask, other=0.0).to(tl.float32)
        value = code * tl.load(scales + row)
    else:
        scale = tl.load(scales + row * (columns // 32) + at // 32, mask=mask, other=0.0).to(tl.float32)
        if stored == tl.int8:
            value = tl.load(codes + row * columns + at, mask=mask, other=0).to(tl.float32) * scale
        else:
            byte = tl.load(codes + row * (columns // 2) + at // 32 * 16 + at % 16, mask=mask, other=0)
            code = tl.where(at % 32 < 16, byte & 15, byte >> 4).to(tl.float32)
            least = tl.load(minima + row * (columns // 32) + at // 32, mask=mask, other=0.0).to(tl.float32)
            value = tl.fma(code, scale, least)
    tl.store(out + row * columns + at, value, mask=mask)


def unpack(weight: Weight, out: torch.Tensor) -> torch.Tensor:
    """The numbers that products compute with.

    Args:
        weight: int8, 4 bits or fp8.
        out: [out, in] floating point to write to, contiguous.

    Raises:
        ValueError: Shapes do not agree, or the weight is not rounded.
    """
    rows, columns = weight.codes.shape[0], weight.columns
    if weight.scale is None:
        raise ValueError("a weight of floats has nothing to unpack")
    if out.shape != (rows, columns) or not out.is_contiguous():
        raise ValueError(f"out must be {(rows, columns)}, contiguous, got {tuple(out.shape)}")
    grid = (rows, triton.cdiv(columns, _COLUMNS))
    minimum = weight.scale if weight.minimum is None else weight.minimum
    _unpack[grid](weight.codes, weight.scale, minimum, out, columns, _COLUMNS, num_warps=4)
    return out
