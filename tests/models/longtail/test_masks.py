"""Windows are read off the functions that make a model's masks."""

from __future__ import annotations

import pytest
import torch

from edgewise.core.errors import UnsupportedModel
from edgewise.models.longtail.masks import Mask, MaskFunction, note_mask, window_of

CONTEXT = 100


def causal(_batch: torch.Tensor, _head: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    return key <= query


def window(size: int) -> MaskFunction:
    return lambda batch, head, query, key: (key <= query) & (key > query - size)


def test_causal_masks_and_windows() -> None:
    assert window_of(note_mask(1, 2, mask_function=causal), CONTEXT, "X") is None
    for size in (1, 2, 33, 99):
        assert window_of(Mask(window(size)), CONTEXT, "X") == size
    assert window_of(Mask(window(100)), CONTEXT, "X") is None


@pytest.mark.parametrize(
    "function",
    [
        lambda batch, head, query, key: key >= 0 * query,  # looks ahead
        lambda batch, head, query, key: (key <= query) & (key // 16 == query // 16),  # chunks
        lambda batch, head, query, key: (key <= query) | (key < 5),  # a prefix
        lambda batch, head, query, key: (key <= query) & (key != 3),
        lambda batch, head, query, key: (key <= query) & (key > query - 10) | (key == 0),  # a sink
    ],
)
def test_other_masks_are_refused(function: MaskFunction) -> None:
    with pytest.raises(UnsupportedModel, match="X has an attention mask that is neither causal nor a sliding window"):
        window_of(Mask(function), CONTEXT, "X")


def test_masks_of_data_and_of_the_models_own_making_are_refused() -> None:
    data = torch.zeros(3, dtype=torch.bool)
    with pytest.raises(UnsupportedModel, match="depends on more than positions"):
        window_of(Mask(lambda batch, head, query, key: data[key]), CONTEXT, "X")
    with pytest.raises(UnsupportedModel, match=r"makes its attention masks itself \(Tensor\)"):
        window_of(torch.zeros(2), CONTEXT, "X")
