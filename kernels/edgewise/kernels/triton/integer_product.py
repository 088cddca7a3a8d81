"""Products of rounded weights by integer matrix instructions: codes are multiplied as they are stored, and never become floats.

Activations are rounded to 15 bits by groups of 32 columns, in two numbers of 8: x = step * (254 * high + low). A group's products
are exact sums of integers (at most 32 * 127 * 127 * 255, below 2^31); what is rounded is their product with the two scales, added
in 16 running sums of float32, one for each group of a step, and these in pairs. So the order of additions is that of the columns
alone. A bfloat16 activation keeps all of its bits as long as it is no smaller than 1/64 of its group's largest.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from edgewise.kernels.triton.narrow import nibble_codes

_GROUPS = 32  # that a program rounds
_ROUND: tl.constexpr = tl.constexpr(12582912.0)  # 1.5 * 2**23: adding it leaves no bit for a fraction
_FINE: tl.constexpr = tl.constexpr(254.0)


@dataclass(frozen=True, slots=True)
class Rounded:
    """Activations [rows, columns] as integers: `step * (254 * high + low)`.

    Attributes:
        high, low: [rows, columns] int8; beside weights of 4 bits a group's columns are in the order 0, 16, 1, 17, ...
        step, mass: [rows, columns / 32] float32; `mass` is the sum of a group.
    """

    high: torch.Tensor
    low: torch.Tensor
    step: torch.Tensor
    mass: torch.Tensor


@triton.jit
def round_groups(x: tl.tensor) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor]:
    """Of [groups, 32] float32: high and low int32, and of every group its step and the sum of its numbers in steps."""
    most = tl.max(tl.abs(x), axis=1)
    usable = (most > 0.0) & (most < float("inf"))
    inverse = tl.where(usable, 127.0 / tl.where(usable, most, 1.0), 0.0)
    scaled = x * inverse[:, None]
    scaled = tl.where(scaled == scaled, scaled, 0.0)
    coarse = (scaled + _ROUND) - _ROUND
    fine = ((scaled - coarse) * _FINE + _ROUND) - _ROUND
    high, low = coarse.to(tl.int32), fine.to(tl.int32)
    step = (most + tl.sum(x - x, axis=1)) * (1.0 / (127.0 * 254.0))  # NaN where a value is not finite
    return high, low, step, tl.sum(high * 254 + low, axis=1)


@triton.jit
def _round(
    a: tl.tensor,
    high_out: tl.tensor,
    low_out: tl.tensor,
    steps: tl.tensor,
    masses: tl.tensor,
    inner: tl.constexpr,
    paired: tl.constexpr,
    block: tl.constexpr,
    overlapped: tl.constexpr,
) -> None:
    """Grid (rows, blocks of groups)."""
    row = tl.program_id(0).to(tl.int64)
    group = tl.program_id(1) * block + tl.arange(0, block)
    at = tl.arange(0, 32)[None, :]
    real = (group < inner // 32)[:, None] & (at < 32)
    first = row * inner + group[:, None] * 32
    if overlapped:
        # The product may begin at once: it waits for this kernel, and so for the one before, ere it reads what either wrote.
        gdc_launch_dependents()
        gdc_wait()
    # What stands at place 2 i of a group of pairs is its column i, at 2 i + 1 its column 16 + i.
    column = at // 2 + at % 2 * 16 if paired else at
    x = tl.load(a + first + column, mask=real, other=0.0).to(tl.float32)
    high, low, step, exact = round_groups(x)
    tl.store(high_out + first + at, high.to(tl.int8), mask=real)
    tl.store(low_out + first + at, low.to(tl.int8), mask=real)
    place = row * (inner // 32) + group
    tl.store(steps + place, step, mask=group < inner // 32)
    tl.store(masses + place, exact.to(tl.float32) * step, mask=group < inner // 32)


def round_rows(a: torch.Tensor, *, paired: bool, overlapped: bool) -> Rounded:
    """Round activations [rows, columns] of floats; `paired` for weights of 4 bits."""
    rows, columns = a.shape
    high, low = (torch.empty(a.shape, dtype=torch.int8, device=a.device) for _ in range(2))
    step, mass = (torch.empty((rows, columns // 32), device=a.device) for _ in range(2))
    _round[(rows, triton.cdiv(columns // 32, _GROUPS))](
        a, high, low, step, mass, columns, paired, _GROUPS, overlapped, num_warps=4, enable_fp_fusion=False,
        **({"launch_pdl": True} if overlapped else {}),
    )  # fmt: skip
    return Rounded(high, low, step, mass)


@triton.jit
def _columns(
    codes: tl.tensor, column: tl.tensor, columns: tl.constexpr, group: tl.tensor, inner: tl.constexpr
) -> tl.tensor:
    """[groups, columns, 32] int8; numbers of 4 bits in the order 0, 16, 1, 17, ..., as `Rounded` has the activations."""
    real = (column < columns)[None, :, None] & (group < inner // 32)[:, None, None]
    line = column.to(tl.int64)[None, :, None]
    if codes.dtype.element_ty == tl.uint8:
        at = line * (inner // 2) + group[:, None, None] * 16 + tl.arange(0, 16)[None, None, :]
        byte = tl.load(codes + at, mask=real, other=0)
        low, high = nibble_codes(byte)
        code = tl.reshape(tl.join(low, high), (group.shape[0], column.shape[0], 32))
    else:
        at = line * inner + group[:, None, None] * 32 + tl.arange(0, 32)[None, None, :]
        code = tl.load(codes + at, mask=real, other=0)
    return code


@triton.jit
def _inputs(x: tl.tensor, row: tl.tensor, rows: tl.tensor, group: tl.tensor, inner: tl.constexpr) -> tl.tensor:
    """[groups, 32, rows] int8."""
    real = (row < rows)[None, :, None] & (group < inner // 32)[:, None, None]
    at = row[None, :, None] * inner + group[:, None, None] * 32 + tl.arange(0, 32)[None, None, :]
    return tl.permute(tl.load(x + at, mask=real, other=0), (0, 2, 1))


@triton.jit
def _add_groups(
    total: tl.tensor,
    codes: tl.tensor,
    scales: tl.tensor,
    minima: tl.tensor,
    high: tl.tensor,
    low: tl.tensor,
    step: tl.tensor,
    mass: tl.tensor,
    column: tl.tensor,
    columns: tl.constexpr,
    group: tl.tensor,
    inner: tl.constexpr,
) -> tl.tensor:
    """total [groups, columns, rows] plus the products of a step; `high`, `low` [groups, 32, rows]."""
    code = _columns(codes, column, columns, group, inner)
    exact = tl.dot(code, high, out_dtype=tl.int32) * 254 + tl.dot(code, low, out_dtype=tl.int32)
    at = column.to(tl.int64)[None, :] * (inner // 32) + group[:, None]
    real = (column < columns)[None, :] & (group < inner // 32)[:, None]
    scale = tl.load(scales + at, mask=real, other=0.0).to(tl.float32)
    total = tl.fma(exact.to(tl.float32), scale[:, :, None] * step[:, None, :], total)
    if codes.dtype.element_ty == tl.uint8:
        least = tl.load(minima + at, mask=real, other=0.0).to(tl.float32)
        shape: tl.constexpr = total.shape
        total = tl.fma(tl.broadcast_to(least[:, :, None], shape), tl.broadcast_to(mass[:, None, :], shape), total)
    return total


@triton.jit
def _joined(x: tl.tensor, columns: tl.constexpr, rows: tl.constexpr) -> tl.tensor:
    """[16, columns, rows] -> [columns, rows], in pairs of neighbours."""
    x = tl.sum(tl.reshape(x, (8, 2, columns, rows)), axis=1)
    x = tl.sum(tl.reshape(x, (4, 2, columns, rows)), axis=1)
    x = tl.sum(tl.reshape(x, (2, 2, columns, rows)), axis=1)
    return tl.sum(x, axis=0)


@triton.jit
def integer_chains(
    high: tl.tensor,
    low: tl.tensor,
    steps: tl.tensor,
    masses: tl.tensor,
    codes: tl.tensor,
    scales: tl.tensor,
    minima: tl.tensor,
    row: tl.tensor,
    rows: tl.tensor,
    column: tl.tensor,
    columns: tl.constexpr,
    matrix_rows: tl.constexpr,
    inner: tl.constexpr,
    gated: tl.constexpr,
    block_rows: tl.constexpr,
    block_columns: tl.constexpr,
    block_inner: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """Sums [block_columns, block_rows] of gate and up, or of a plain product and zeros; `block_inner` decides their order."""
    total = tl.zeros((block_inner // 32, block_columns, block_rows), dtype=tl.float32)
    up = tl.zeros((block_inner // 32, block_columns, block_rows), dtype=tl.float32)
    for first in range(0, inner, block_inner):
        group = first // 32 + tl.arange(0, block_inner // 32)
        real = (group < inner // 32)[:, None] & (row < rows)[None, :]
        at = row[None, :] * (inner // 32) + group[:, None]
        step = tl.load(steps + at, mask=real, other=0.0)
        mass = step
        if codes.dtype.element_ty == tl.uint8:
            mass = tl.load(masses + at, mask=real, other=0.0)
        coarse, fine = _inputs(high, row, rows, group, inner), _inputs(low, row, rows, group, inner)
        total = _add_groups(
            total, codes, scales, minima, coarse, fine, step, mass, column, columns, group, inner
        )  # fmt: skip
        if gated:
            up = _add_groups(
                up, codes, scales, minima, coarse, fine, step, mass, column + columns, matrix_rows, group, inner
            )  # fmt: skip
    return _joined(total, block_columns, block_rows), _joined(up, block_columns, block_rows)
