"""Scales of columns that make matrices and their inputs easier to round, folded into what makes the inputs.

A product is the same with the columns of the matrix multiplied by s and its inputs divided by s. With s between one and the
columns' own root mean squares, groups of 32 inputs are of like size, so that their largest costs the others fewer bits; the
matrix takes up the rest (SmoothQuant, arXiv 2211.10438, and AWQ, arXiv 2306.00978, which choose s otherwise). Nothing divides at
run time: the weights of the norm before, the rows of `up` or the rows of the value heads do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch

from edgewise.models.decoder.config import DecoderConfig
from edgewise.models.quantize.energies import LayerEnergies

_WIDEST: Final = 32.0  # a scale is between 1/32 and 32: columns that the text hardly used stay near the others


@dataclass(frozen=True, slots=True, kw_only=True)
class Scales:
    """Of the columns of a layer's four matrices; `value` divides the rows of the value heads, since query heads share them."""

    qkv: torch.Tensor
    output: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor
    value: torch.Tensor


def choose_scales(config: DecoderConfig, layers: Sequence[LayerEnergies], strength: float) -> list[Scales]:
    """Root mean squares to the power of `strength`, from 0 (none) to 1 (inputs all alike)."""
    heads = config.num_kv_heads, config.num_heads // config.num_kv_heads, config.head_dim

    def of(energy: torch.Tensor) -> torch.Tensor:
        logs = energy.clamp_min(1e-20).log() * (0.5 * strength)
        return (logs - logs.mean()).exp().clamp(1 / _WIDEST, _WIDEST)

    found = []
    for it in layers:
        value = of(it.output.reshape(heads).mean(1))
        shared = value[:, None].expand(heads).reshape(-1)
        found.append(
            Scales(qkv=of(it.qkv), output=shared, gate_up=of(it.gate_up), down=of(it.down), value=value.reshape(-1))
        )
    return found
