from __future__ import annotations

import math

import torch

from edgewise.kernels.rope_parameters import RopeParameters

_CHUNK_POSITIONS = 4096


def inverse_frequencies(parameters: RopeParameters, rotary_dim: int) -> torch.Tensor:
    """[rotary_dim / 2] float32, radians per position."""
    powers = parameters.theta ** (torch.arange(0, rotary_dim, 2, dtype=torch.int64).float() / rotary_dim)
    if parameters.kind == "yarn":
        return _yarn(parameters, powers, rotary_dim)
    if parameters.kind == "longrope" and parameters.divisors:
        return 1.0 / (torch.tensor(parameters.divisors, dtype=torch.float32) * powers)
    frequencies = 1.0 / powers
    if parameters.kind == "linear":
        return frequencies / parameters.factor
    if parameters.kind == "llama3":
        return _llama3(parameters, frequencies)
    return frequencies


def _llama3(parameters: RopeParameters, frequencies: torch.Tensor) -> torch.Tensor:
    original, factor = parameters.original_max_position, parameters.factor
    low, high = parameters.low_freq_factor, parameters.high_freq_factor
    wavelengths = 2 * math.pi / frequencies
    stretched = torch.where(wavelengths > original / low, frequencies / factor, frequencies)
    smooth = (original / wavelengths - low) / (high - low)
    between = (1 - smooth) * stretched / factor + smooth * stretched
    medium = (wavelengths >= original / high) & (wavelengths <= original / low)
    return torch.where(medium, between, stretched)


def _yarn(parameters: RopeParameters, powers: torch.Tensor, rotary_dim: int) -> torch.Tensor:
    def dimension(rotations: float) -> float:
        turns = parameters.original_max_position / (rotations * 2 * math.pi)
        return (rotary_dim * math.log(turns)) / (2 * math.log(parameters.theta))

    low, high = dimension(parameters.beta_fast), dimension(parameters.beta_slow)
    if parameters.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rotary_dim - 1)
    if low == high:
        high += 0.001  # no division by zero
    ramp = ((torch.arange(rotary_dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    keep = 1 - ramp
    return 1.0 / (parameters.factor * powers) * (1 - keep) + 1.0 / powers * keep


def tables(frequencies: torch.Tensor, positions: int, factor: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosine and sine [positions, rotary_dim / 2] float32; in chunks, so that no more memory is touched than the result's."""
    cos, sin = (torch.empty(positions, frequencies.shape[0]) for _ in range(2))
    for first in range(0, positions, _CHUNK_POSITIONS):
        last = min(first + _CHUNK_POSITIONS, positions)
        angles = torch.arange(first, last).float()[:, None] * frequencies
        cos[first:last] = angles.cos() * factor
        sin[first:last] = angles.sin() * factor
    return cos, sin


def rows(cos: torch.Tensor, sin: torch.Tensor, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return _laid_out(cos.index_select(0, positions), sin.index_select(0, positions))


def section_rows(
    cos: torch.Tensor, sin: torch.Tensor, positions: torch.Tensor, axes: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """`rows` for positions [3, T]: each angle turns by the position of its own axis."""
    own = positions.index_select(0, axes).T  # [T, n / 2]
    return _laid_out(cos.gather(0, own), sin.gather(0, own))


def section_axes(sections: tuple[int, ...], interleaved: bool) -> torch.Tensor:
    """[sum(sections)] int64, the axis of each angle, as transformers' Qwen2-VL has them (in turn), or its Qwen3-VL."""
    if not interleaved:
        return torch.repeat_interleave(torch.arange(3), torch.tensor(sections))
    axes = torch.zeros(sum(sections), dtype=torch.int64)
    for axis in (1, 2):
        axes[axis : 3 * sections[axis] : 3] = axis
    return axes


def _laid_out(c: torch.Tensor, s: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.cat((c, c), dim=-1).unsqueeze(1), torch.cat((-s, s), dim=-1).unsqueeze(1)


def apply(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Products and sums stay separate operations: a fused multiply-add would round differently in vector and scalar code."""
    x = x.float()
    rotary = cos.shape[-1]
    if rotary < x.shape[-1]:
        return torch.cat((apply(x[..., :rotary], cos, sin), x[..., rotary:]), dim=-1)
    half = rotary // 2
    swapped = torch.cat((x[..., half:], x[..., :half]), dim=-1).mul_(sin)
    return (x * cos).add_(swapped)
