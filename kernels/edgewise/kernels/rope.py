"""Rotary position embeddings (Su et al. 2021, RoFormer), halves layout: dimension i turns with i + head_dim / 2."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from edgewise.kernels.reference import rope as reference
from edgewise.kernels.rope_parameters import RopeParameters


@dataclass(frozen=True, slots=True)
class RopeTable:
    """Cosine and sine of every position's angles; `cos`, `sin`: [positions, head_dim / 2] float32."""

    cos: torch.Tensor
    sin: torch.Tensor


@dataclass(frozen=True, slots=True)
class RopeRows:
    """The rows of a table that one step needs, laid out for `apply_rope`; `cos`, `sin`: [T, 1, head_dim] float32."""

    cos: torch.Tensor
    sin: torch.Tensor


def rope_tables(
    parameters: RopeParameters,
    head_dim: int,
    max_position: int,
    *,
    device: torch.device | None = None,
    divisors: torch.Tensor | None = None,
) -> RopeTable:
    """Angles of positions 0 to max_position - 1, by the formulas of Hugging Face transformers (equal in float32).

    Args:
        parameters: Kind and its numbers.
        head_dim: Even.
        max_position: Number of positions.
        device: Where the tables lie; computed on the CPU.
        divisors: [head_dim / 2] float32 or None; each frequency is divided by its entry (GGUF files carry such).

    Raises:
        ValueError: An odd head size, no position, or divisors of another shape.
    """
    if head_dim < 2 or head_dim % 2 or max_position < 1:
        raise ValueError(f"head_dim must be even and max_position positive, got {head_dim} and {max_position}")
    if divisors is not None and divisors.shape != (head_dim // 2,):
        raise ValueError(f"divisors must be [{head_dim // 2}], got {tuple(divisors.shape)}")
    frequencies = reference.inverse_frequencies(parameters, head_dim)
    if divisors is not None:
        frequencies = frequencies / divisors.to(torch.float32)
    cos, sin = reference.tables(frequencies, max_position, parameters.attention_factor)
    return RopeTable(cos.to(device), sin.to(device))


def rope_rows(table: RopeTable, positions: torch.Tensor) -> RopeRows:
    """Look up positions [T] int64, once for all layers of a step.

    Raises:
        ValueError: `positions` is not one row of int64.
    """
    if positions.dim() != 1 or positions.dtype != torch.int64:
        raise ValueError(f"positions must be [T] int64, got {tuple(positions.shape)} {positions.dtype}")
    return RopeRows(*reference.rows(table.cos, table.sin, positions))


def apply_rope(x: torch.Tensor, rows: RopeRows) -> torch.Tensor:
    """Rotate heads; query and key heads that lie side by side take one call.

    Args:
        x: [T, heads, head_dim] floating point.
        rows: The angles of the T tokens.

    Returns:
        [T, heads, head_dim] float32, contiguous.

    Raises:
        ValueError: Shapes do not agree.
    """
    if x.dim() != 3 or (x.shape[0], 1, x.shape[2]) != rows.cos.shape:
        raise ValueError(f"x must be [T, heads, head_dim] with rows {tuple(rows.cos.shape)}, got {tuple(x.shape)}")
    return reference.apply(x, rows.cos, rows.sin)
