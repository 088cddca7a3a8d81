from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 - the name everybody uses

from edgewise.kernels.native.formats import GROUP, PANEL_ROWS, SUPER, WeightFormat, scale_bytes
from edgewise.kernels.native.packed import PackedMatrix

LEAST_MAGNITUDE = 2.0**-119  # below it 127 / max|x| is infinite


def round_activations(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """x [rows, cols] -> codes [rows, groups, 32] and scales [rows, groups], float32. NaN or infinity: scale NaN."""
    padded = F.pad(x, (0, -x.shape[1] % GROUP))
    grouped = padded.reshape(len(x), padded.shape[1] // GROUP, GROUP)
    largest = grouped.abs().amax(2)
    finite = grouped.isfinite().all(2)
    some = finite & (largest >= LEAST_MAGNITUDE)
    one = torch.ones(())
    inverse = torch.where(some, 127.0 / torch.where(some, largest, one), 0.0)
    codes = torch.round(torch.where(finite[..., None], grouped, 0.0) * inverse[..., None])
    scales = torch.where(some, largest / 127.0, 0.0)
    return codes, torch.where(finite, scales, torch.nan)


def round_rest(x: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """What `round_activations` of x [rows, cols] left, rounded once more where a group's scale is above the root mean square of
    its row's; elsewhere codes and scales of zero."""
    squares = torch.zeros(len(x))
    for g in range(scales.shape[1]):
        squares = squares + scales[:, g] * scales[:, g]
    large = scales * scales * float(scales.shape[1]) > squares[:, None]
    grouped = F.pad(x, (0, -x.shape[1] % GROUP)).reshape(codes.shape)
    left = (grouped.double() - codes.double() * scales[..., None].double()).float()
    fine, steps = round_activations(torch.where(large[..., None], left, 0.0).flatten(1))
    return fine, steps


def rotate(x: torch.Tensor) -> torch.Tensor:
    """The Walsh-Hadamard transform of every group of 32 columns, zeros added to the last, in float32 and in the order of
    native/src/rotation.h; twice is 32 times as much as nothing done."""
    padded = F.pad(x, (0, -x.shape[1] % GROUP))
    groups = padded.reshape(-1, GROUP)
    for apart in (16, 1, 2, 4, 8):
        low, high = groups.reshape(len(groups), GROUP // (2 * apart), 2, apart).unbind(2)
        groups = torch.stack((low + high, low - high), dim=2).reshape(groups.shape)
    return groups.reshape(padded.shape)


def unpack_codes(weight: PackedMatrix) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Codes [rows, groups, 32], scales [rows, groups, 1] (INT8_K16: 2, for 16 columns each) and minima [rows, groups] of an
    integer format, float32 (layout: native/src/packing.h)."""
    groups, panels = -(-weight.cols // GROUP), -(-weight.rows // PANEL_ROWS)
    data = weight.data.view(panels, -1)
    head = scale_bytes(weight.cols, weight.format)
    cells = data[:, head:].reshape(panels, groups, -1, PANEL_ROWS, 4)  # four neighbouring columns of 16 rows
    if weight.format.has_bytes:
        cells = cells.view(torch.int8)
    else:
        zero = 8 if weight.format == WeightFormat.INT4_EVEN else 0
        cells = torch.stack((cells & 15, cells >> 4), dim=3).flatten(2, 3).to(torch.int8) - zero
    codes = cells.permute(0, 3, 1, 2, 4).flatten(3).flatten(0, 1)[: weight.rows]
    scales, minima = _steps(data[:, :head], weight.format, groups)
    return codes.float(), scales.flatten(0, 1)[: weight.rows], minima.flatten(0, 1)[: weight.rows]


def _steps(head: torch.Tensor, weight_format: WeightFormat, groups: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Scales [panels, 16, groups, 1 or 2] and minima [panels, 16, groups] of what stands before the codes of each panel."""
    panels, numbers = len(head), 2 if weight_format.has_minimum else 1
    count = groups * GROUP // SUPER if weight_format.has_factors else groups
    halves = 2 * numbers * PANEL_ROWS
    size = halves + (SUPER // GROUP * 2 * PANEL_ROWS if weight_format.has_factors else 0)
    cells = head[:, : count * size].reshape(panels, count, size)
    floats = cells[..., :halves].contiguous().view(torch.float16).float().view(panels, count, numbers, PANEL_ROWS)
    if weight_format.has_factors:
        factors = cells[..., halves:].contiguous().view(torch.int8).float().view(panels, groups, 2, PANEL_ROWS)
        floats = floats.repeat_interleave(SUPER // GROUP, 1)
        if numbers == 1:
            return (floats * factors).permute(0, 3, 1, 2), torch.zeros((panels, PANEL_ROWS, groups))
        floats = floats * factors
    by_row = floats.permute(0, 3, 1, 2)
    return by_row[..., :1], by_row[..., 1] if numbers == 2 else torch.zeros_like(by_row[..., 0])


def _integer_product(x: torch.Tensor, weight: PackedMatrix) -> torch.Tensor:
    """Sums over groups as a fused multiply-add gives them: exact in float64, then rounded to float32."""
    given = rotate(x) / 8.0 if weight.format == WeightFormat.INT8_ROTATED else x
    codes, scales = round_activations(given)
    terms = ((codes, scales), round_rest(given, codes, scales))
    weights, steps, minima = unpack_codes(weight)
    acc = torch.zeros((len(x), weight.rows))
    parts = steps.shape[2]
    for g in range(codes.shape[1]):
        for each, its in terms:
            for part, columns in enumerate(torch.arange(GROUP).chunk(parts)):
                dots = each[:, g, columns].double() @ weights[:, g, columns].double().T
                factor = steps[:, g, part] * its[:, g, None]
                acc = (dots * factor.double() + acc.double()).float()
            if weight.format.has_minimum:
                sums = its[:, g] * each[:, g].sum(1)
                acc = (minima[:, g].double() * sums[:, None].double() + acc.double()).float()
    return acc


def quantized_linear(x: torch.Tensor, weight: PackedMatrix, bias: torch.Tensor | None, epilogue: str) -> torch.Tensor:
    """In float64 where the native kernels have integers or fused multiply-adds."""
    if weight.format in (WeightFormat.FLOAT32, WeightFormat.BFLOAT16):
        product = (x.double() @ weight.unpack().double().T).float()
    else:
        product = _integer_product(x, weight)
    if bias is not None:
        product = product + bias
    if epilogue == "store":
        return product
    pairs = product.reshape(len(product), product.shape[1] // (2 * PANEL_ROWS), 2, PANEL_ROWS)
    gate, up = pairs.transpose(1, 2).flatten(2).unbind(1)
    act = F.silu if epilogue == "silu_mul" else lambda value: F.gelu(value, approximate="tanh")
    return (act(gate.double()) * up.double()).float()
