"""A step by the reference's functions, on any device. It waits for results: no graph can take it."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from edgewise.kernels.paging import PAGE_TOKENS, AttentionMeta, KVLayer
from edgewise.kernels.philox import uniform
from edgewise.kernels.sample import RowControls, sample
from edgewise.models.decoder.model import Decoder


class PlainStep:
    """`DecodeStep` of a `Decoder`: what the other forms are compared with, and how the loop runs without a GPU."""

    def __init__(self, decoder: Decoder, kv: Sequence[KVLayer]) -> None:
        self._decoder = decoder
        self._kv = kv

    def __repr__(self) -> str:
        return f"PlainStep({self._decoder!r})"

    def logits(
        self,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        slots: torch.Tensor,
        table: torch.Tensor,
        *,
        together: bool,
    ) -> torch.Tensor:
        del together  # all keys and values of a layer are written before any of them is read
        real = torch.nonzero(positions >= 0).flatten()
        contexts = (positions[real] + 1).tolist()
        meta = AttentionMeta(
            query_lens=(1,) * len(contexts),
            context_lens=tuple(contexts),
            positions=positions[real],
            slots=slots[real],
            block_tables=table[real],
        )
        found = self._decoder.logits(self._decoder.forward(tokens[real].clamp(min=0), self._kv, meta))
        out = found.new_zeros((tokens.shape[0], found.shape[1]))
        out[real] = found
        return out

    def slots(self, positions: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        at = positions.clamp(min=0)
        page = table.gather(1, (at // PAGE_TOKENS).unsqueeze(1)).squeeze(1).long()
        return torch.where(positions >= 0, page * PAGE_TOKENS + at % PAGE_TOKENS, -1)

    def advance(self, positions: torch.Tensor, places: torch.Tensor) -> None:
        places += positions >= 0
        positions += positions >= 0

    def draw(
        self,
        logits: torch.Tensor,
        temperature: torch.Tensor,
        min_p: torch.Tensor,
        seeds: torch.Tensor,
        places: torch.Tensor,
        out: torch.Tensor,
    ) -> None:
        columns = zip(*(column.tolist() for column in (temperature, min_p, seeds, places)), strict=True)
        controls = [
            RowControls(temperature=heat, min_p=least, uniform=uniform(seed % 2**64, place) if heat > 0 else 0.0)
            for heat, least, seed, place in columns
        ]
        out.copy_(torch.tensor([draw.token for draw in sample(logits, controls)]))
