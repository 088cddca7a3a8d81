from __future__ import annotations

import torch

MOST = 448.0  # largest number of e4m3
LEAST_MAGNITUDE = 2.0**-119  # below it 448 / max|x| is infinite


def round_rows(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """x [rows, cols] -> codes [rows, cols] float8_e4m3fn and scales [rows] float32. NaN or infinity: codes 0, scale NaN."""
    wide = x.float()
    largest = wide.abs().amax(1)  # NaN where there is one
    finite = largest < torch.inf
    some = finite & (largest >= LEAST_MAGNITUDE)
    safe = torch.where(some, largest, 1.0)
    # Both are tensors: a number is multiplied with an inverse, rounded twice; on CUDA also where it divides.
    most = torch.full_like(safe, MOST)
    inverse = torch.where(some, most / safe, 0.0)
    scaled = torch.where(finite[:, None], wide, 0.0) * inverse[:, None]
    codes = scaled.clamp_(-MOST, MOST).to(torch.float8_e4m3fn)
    scale = torch.where(some, safe / most, 0.0)
    return codes, torch.where(finite, scale, torch.nan)


def fp8_linear(
    codes: torch.Tensor,
    step: torch.Tensor,
    weight: torch.Tensor,
    scale: torch.Tensor,
    bias: torch.Tensor | None,
    dtype: torch.dtype,
) -> torch.Tensor:
    """Sums are exact: products of two numbers of e4m3 are multiples of 2^-18 up to 2^18, and up to 2^16 of them have room in
    float64, whatever their order. Scales and bias follow in float64, then one rounding to float32 and one to `dtype`."""
    total = codes.double() @ weight.double().T
    value = total * (step.double()[:, None] * scale.double())
    if bias is not None:
        value = value + bias.double()
    return value.float().to(dtype)
