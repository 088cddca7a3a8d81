"""What a model with eyes or ears is to the engine that runs it."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias, runtime_checkable

import torch

from edgewise.kernels.paging import AttentionMeta, KVLayer
from edgewise.models.multimodal.media import Media


class MediaEncoder(Protocol):
    """A vision tower, an audio encoder: from samples to rows of the decoder's input."""

    def encode(self, items: Sequence[Media]) -> list[torch.Tensor]:
        """[count, width] for each item, on the decoder's device; a row for each placeholder.

        A result depends on its own item alone, not on those that are computed beside it.
        """


Slices: TypeAlias = Generator[None, None, torch.Tensor]
"""A computation in parts: whoever runs it may do something else between two of them. Returns its result."""


def finished(slices: Slices) -> torch.Tensor:
    """The result, computed at once."""
    while True:
        try:
            next(slices)
        except StopIteration as end:
            result: torch.Tensor = end.value
            return result


@runtime_checkable
class SlicedEncoder(MediaEncoder, Protocol):
    """A `MediaEncoder` that can be interrupted, so that running streams do not wait for all of a picture.

    A class that names this one as its base has `encode` from here.
    """

    @torch.inference_mode()
    def encode(self, items: Sequence[Media]) -> list[torch.Tensor]:
        """See `MediaEncoder.encode`."""
        return [finished(self.slices(item)) for item in items]

    def slices(self, item: Media) -> Slices:
        """As `encode` of one item, to the bit. Runs in inference mode."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class StepMedia:
    """Rows of one step's tokens that come from an encoder.

    Attributes:
        rows: [n] int64, which of the step's tokens.
        values: [n, width], as the decoder's first layer takes them: a model that scales its embeddings (Gemma) leaves these.
    """

    rows: torch.Tensor
    values: torch.Tensor


class MultimodalNetwork(Protocol):
    """A decoder whose prompts may hold media: `engine.runner.Network`, and this."""

    @property
    def encoder(self) -> MediaEncoder: ...

    def forward(
        self, tokens: torch.Tensor, kv: Sequence[KVLayer], meta: AttentionMeta, media: StepMedia | None = None
    ) -> torch.Tensor: ...
