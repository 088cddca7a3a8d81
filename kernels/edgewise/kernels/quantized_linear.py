"""Matrix product of activation rows with a packed weight, the same for a row whatever rows stand beside it."""

from __future__ import annotations

from typing import Literal

import torch

from edgewise.kernels.back_end import BackEnd
from edgewise.kernels.native import quantized_linear as native
from edgewise.kernels.native.formats import PANEL_ROWS
from edgewise.kernels.native.packed import PackedMatrix
from edgewise.kernels.reference import quantized_linear as reference

Epilogue = Literal["store", "silu_mul", "gelu_mul"]


def quantized_linear(
    x: torch.Tensor,
    weight: PackedMatrix,
    bias: torch.Tensor | None = None,
    epilogue: Epilogue = "store",
    back_end: BackEnd = "native",
) -> torch.Tensor:
    """x @ weight.T + bias, with activations rounded to int8 in groups of 32 columns where the weight is of integers.

    A group's scale is max|x| / 127, its codes are x * (127 / max|x|) to the nearest, half to even; a group below 2^-119 becomes
    zeros. Where a scale is above the root mean square of the row's scales, what is left of the group is rounded once more in the
    same way. Products of codes are exact integers; sums over groups are float32, in order. A NaN or an infinity in a row makes
    every output of that row NaN and touches no other row (with weights of floats: as in float arithmetic, NaN or infinite). The
    bits of a row do not depend on other rows, on the number of threads or on the processor's instruction set.

    Args:
        x: [rows, weight.cols] float32 on the CPU.
        weight: The packed weight; for a gated epilogue made by `pack_gate_up`.
        bias: [weight.rows] float32 or None.
        epilogue: "silu_mul": silu(gate) * up of a weight of both, "gelu_mul": gelu by tanh instead.
        back_end: "native", or "reference" for PyTorch (exact products, sums rounded alike up to the rarest ties).

    Returns:
        [rows, weight.rows] float32, for gated epilogues [rows, weight.rows / 2].

    Raises:
        ValueError: Shapes or dtypes do not agree.
        NativeUnavailable: There is no native library here.
    """
    if x.dim() != 2 or x.shape[1] != weight.cols or x.dtype != torch.float32 or x.device.type != "cpu":
        raise ValueError(
            f"x must be float32 [rows, {weight.cols}] on the CPU, got {tuple(x.shape)} {x.dtype} {x.device}"
        )
    if bias is not None and (bias.shape != (weight.rows,) or bias.dtype != torch.float32):
        raise ValueError(f"bias must be float32 [{weight.rows}], got {tuple(bias.shape)} {bias.dtype}")
    if epilogue != "store" and weight.rows % (2 * PANEL_ROWS):
        raise ValueError(f"a gated weight has a multiple of {2 * PANEL_ROWS} rows (pack_gate_up), got {weight.rows}")
    if back_end == "reference":
        return reference.quantized_linear(x, weight, bias, epilogue)
    return native.quantized_linear(x, weight, bias, epilogue)
