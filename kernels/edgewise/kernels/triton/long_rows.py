"""What lies between the products of a prompt's pass: norms and gates of thousands of rows, each by programs of its own."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from edgewise.kernels.triton.decode_product import gate

_BLOCK = 1024


@triton.jit
def _norm(
    x: tl.tensor,
    delta: tl.tensor,
    weight: tl.tensor,
    post_weight: tl.tensor,
    out: tl.tensor,
    eps: tl.tensor,
    hidden: tl.constexpr,
    block: tl.constexpr,
    adds: tl.constexpr,
    post: tl.constexpr,
) -> None:
    """One program a row: x += delta, normalised first if `post`; out = rms_norm(x) * weight."""
    place = tl.arange(0, block)
    real = place < hidden
    at = tl.program_id(0).to(tl.int64) * hidden + place
    value = tl.load(x + at, mask=real, other=0.0)
    if adds:
        more = tl.load(delta + at, mask=real, other=0.0).to(tl.float32)
        if post:
            more *= 1.0 / tl.sqrt(tl.sum(more * more, axis=0) / hidden + eps)
            more *= tl.load(post_weight + place, mask=real, other=0.0)
        value += more
        tl.store(x + at, value, mask=real)
    inverse = 1.0 / tl.sqrt(tl.sum(value * value, axis=0) / hidden + eps)
    tl.store(out + at, value * inverse * tl.load(weight + place, mask=real, other=0.0), mask=real)


@triton.jit
def _activate(
    gate_up: tl.tensor, out: tl.tensor, width: tl.constexpr, activation: tl.constexpr, block: tl.constexpr
) -> None:
    """Grid (rows, blocks of the width)."""
    row = tl.program_id(0).to(tl.int64)
    place = tl.program_id(1) * block + tl.arange(0, block)
    real = place < width
    left = tl.load(gate_up + row * 2 * width + place, mask=real, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * width + width + place, mask=real, other=0.0).to(tl.float32)
    tl.store(out + row * width + place, gate(left, activation) * up, mask=real)


def add_rms_norm(
    x: torch.Tensor,
    delta: torch.Tensor | None,
    weight: torch.Tensor,
    eps: float,
    dtype: torch.dtype,
    post_norm: torch.Tensor | None = None,
) -> torch.Tensor:
    """Add to the residual stream and normalise the sum.

    Args:
        x: [rows, hidden] float32, contiguous; changed.
        delta: [rows, hidden] floating point, contiguous, or None.
        weight: [hidden] float32.
        eps: Added to the mean square.
        dtype: Of the result.
        post_norm: [hidden] float32, weight of a norm of `delta` before it is added, or None.

    Returns:
        [rows, hidden] in `dtype`: rms_norm(x + delta) * weight.

    Raises:
        ValueError: Shapes or dtypes do not agree, or a tensor is not contiguous.
    """
    given = x if delta is None else delta
    if x.dim() != 2 or x.dtype != torch.float32 or given.shape != x.shape or weight.shape != x.shape[1:]:
        raise ValueError(f"x must be [rows, hidden] float32, delta alike, got {tuple(x.shape)}, {tuple(given.shape)}")
    if not (x.is_contiguous() and given.is_contiguous()):
        raise ValueError("x and delta must be contiguous")
    rows, hidden = x.shape
    out = torch.empty((rows, hidden), dtype=dtype, device=x.device)
    block = triton.next_power_of_2(hidden)
    if rows:
        _norm[(rows,)](
            x,
            given,
            weight,
            weight if post_norm is None else post_norm,
            out,
            eps,
            hidden,
            block,
            delta is not None,
            post_norm is not None,
            num_warps=min(16, max(1, block // 512)),
        )
    return out


def activate(gate_up: torch.Tensor, activation: str) -> torch.Tensor:
    """activation(gate) * up of [rows, 2 * n] contiguous, gate first; [rows, n] of the same dtype.

    Raises:
        ValueError: Another activation than "silu" and "gelu_tanh", or another shape.
    """
    if activation not in ("silu", "gelu_tanh"):
        raise ValueError(f"activation must be silu or gelu_tanh, got {activation}")
    if gate_up.dim() != 2 or gate_up.shape[1] % 2 or not gate_up.is_contiguous():
        raise ValueError(f"gate_up must be [rows, 2 * n] and contiguous, got {tuple(gate_up.shape)}")
    rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty((rows, width), dtype=gate_up.dtype, device=gate_up.device)
    if rows:
        _activate[(rows, triton.cdiv(width, _BLOCK))](gate_up, out, width, activation, _BLOCK, num_warps=4)
    return out
