"""What a model's attention masks mean, asked of the functions that make them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from edgewise.core.errors import UnsupportedModel

# (batch, head, query position, key position) as integer tensors -> bool: may it look there?
MaskFunction = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True)
class Mask:
    """Stands where a model expects a mask tensor; it hands it on to its attention layers."""

    function: MaskFunction


def note_mask(*_sizes: Any, mask_function: MaskFunction, **_options: Any) -> Mask:
    """An entry for transformers' AttentionMaskInterface."""
    return Mask(mask_function)


def window_of(mask: object, max_position: int, where: str) -> int | None:
    """Positions that a token sees under a mask, itself included; None for all before it.

    Raises:
        UnsupportedModel: The model makes its masks itself, or they are neither causal nor a sliding window.
    """
    if not isinstance(mask, Mask):
        raise UnsupportedModel(
            f"{where} makes its attention masks itself ({type(mask).__name__}), which cannot be paged."
        )
    last = max_position - 1
    try:
        window = int(_row(mask, last, max_position).sum())
        probes = {0, 1, 2, last // 3, last // 2, last, *(window + step for step in (-1, 0, 1, window))}
        regular = all(_is_window(mask, at, window, max_position) for at in probes if 0 <= at <= last)
    except (RuntimeError, TypeError, IndexError, AttributeError) as error:
        raise UnsupportedModel(f"{where} has an attention mask that depends on more than positions: {error}") from error
    if not regular:
        raise UnsupportedModel(f"{where} has an attention mask that is neither causal nor a sliding window.")
    return None if window == max_position else window


def _row(mask: Mask, query: int, max_position: int) -> torch.Tensor:
    zero = torch.zeros((), dtype=torch.int64)
    seen = mask.function(zero, zero, torch.tensor(query), torch.arange(max_position))
    return torch.as_tensor(seen, dtype=torch.bool).expand(max_position)


def _is_window(mask: Mask, query: int, window: int, max_position: int) -> bool:
    keys = torch.arange(max_position)
    return torch.equal(_row(mask, query, max_position), (keys <= query) & (keys > query - window))
