"""Rotary position embeddings (Su et al. 2021, RoFormer), halves layout: dimension i turns with i + n / 2 of the n that rotate."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from edgewise.kernels.back_end import BackEnd
from edgewise.kernels.native import rope as native
from edgewise.kernels.reference import rope as reference
from edgewise.kernels.rope_parameters import RopeParameters


@dataclass(frozen=True, slots=True)
class RopeTable:
    """Cosine and sine of every position's angles; `cos`, `sin`: [positions, n / 2] float32 for n rotated dimensions.

    `axes` [n / 2] int64 is the row of `AttentionMeta.rope_positions` by which each angle turns; None where positions have one
    dimension.
    """

    cos: torch.Tensor
    sin: torch.Tensor
    axes: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class RopeRows:
    """The rows of a table that one step needs, laid out for `apply_rope`; `cos`, `sin`: [T, 1, n] float32."""

    cos: torch.Tensor
    sin: torch.Tensor


def rope_tables(
    parameters: RopeParameters,
    rotary_dim: int,
    max_position: int,
    *,
    device: torch.device | None = None,
    divisors: torch.Tensor | None = None,
) -> RopeTable:
    """Angles of positions 0 to max_position - 1, by the formulas of Hugging Face transformers (equal in float32).

    Args:
        parameters: Kind and its numbers.
        rotary_dim: Dimensions of a head that rotate, n; even.
        max_position: Number of positions.
        device: Where the tables lie; computed on the CPU.
        divisors: [n / 2] float32 or None; each frequency is divided by its entry (GGUF files carry such).

    Raises:
        ValueError: An odd size, no position, divisors of another shape, or sections that do not cover the angles.
    """
    if rotary_dim < 2 or rotary_dim % 2 or max_position < 1:
        raise ValueError(f"rotary_dim must be even and max_position positive, got {rotary_dim} and {max_position}")
    if divisors is not None and divisors.shape != (rotary_dim // 2,):
        raise ValueError(f"divisors must be [{rotary_dim // 2}], got {tuple(divisors.shape)}")
    frequencies = reference.inverse_frequencies(parameters, rotary_dim)
    if divisors is not None:
        frequencies = frequencies / divisors.to(torch.float32)
    cos, sin = reference.tables(frequencies, max_position, parameters.attention_factor)
    axes = None
    if parameters.sections:
        if len(parameters.sections) != 3 or sum(parameters.sections) != rotary_dim // 2:
            raise ValueError(f"three sections must sum to {rotary_dim // 2}, got {parameters.sections}")
        axes = reference.section_axes(parameters.sections, parameters.interleaved).to(device)
    return RopeTable(cos.to(device), sin.to(device), axes)


def rope_rows(table: RopeTable, positions: torch.Tensor) -> RopeRows:
    """Look up positions, once for all layers of a step.

    Args:
        table: Of the layers.
        positions: [T] int64; or [3, T] for a table with sections, where [T] stands for three equal rows.

    Raises:
        ValueError: `positions` is of another shape or dtype.
    """
    if positions.dtype != torch.int64 or positions.dim() not in (1, 2):
        raise ValueError(f"positions must be [T] or [3, T] int64, got {tuple(positions.shape)} {positions.dtype}")
    if positions.dim() == 1:
        return RopeRows(*reference.rows(table.cos, table.sin, positions))
    if table.axes is None or positions.shape[0] != 3:
        raise ValueError(f"positions {tuple(positions.shape)} need a table with sections, and three rows")
    return RopeRows(*reference.section_rows(table.cos, table.sin, positions, table.axes))


def apply_rope(x: torch.Tensor, rows: RopeRows, *, back_end: BackEnd = "reference") -> torch.Tensor:
    """Rotate the first n dimensions of heads, keep the others; query and key heads that lie side by side take one call.

    Args:
        x: [T, heads, head_dim] floating point.
        rows: The angles of the T tokens.
        back_end: All give the same bits.

    Returns:
        [T, heads, head_dim] float32, contiguous.

    Raises:
        ValueError: Shapes do not agree.
        NativeUnavailable: `native` was asked for and there is no library.
    """
    if x.dim() != 3 or rows.cos.shape[:2] != (x.shape[0], 1) or rows.cos.shape[2] > x.shape[2]:
        raise ValueError(f"x must be [T, heads, head_dim] with rows {tuple(rows.cos.shape)}, got {tuple(x.shape)}")
    if back_end == "native":
        return native.apply(x, rows.cos, rows.sin)
    return reference.apply(x, rows.cos, rows.sin)
