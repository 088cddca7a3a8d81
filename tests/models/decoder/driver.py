"""A decoder driven step by step over its paged cache, as the engine's runner drives it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from edgewise.kernels.paging import PAGE_TOKENS, AttentionMeta, KVLayer
from edgewise.models.adapters.loading import AdaptedRows
from edgewise.models.decoder.config import DecoderConfig
from edgewise.models.decoder.loading import load_decoder
from edgewise.models.decoder.model import Decoder
from edgewise.models.files import ModelFiles

Work = tuple[list[int], int, list[int]]  # tokens, position of the first, pages of the sequence


@dataclass
class Driver:
    """Pages that were never written hold NaN, so that reading one shows."""

    decoder: Decoder
    kv_dtype: torch.dtype = torch.float32
    num_pages: int = 64
    kv: list[KVLayer] = field(init=False)

    def __post_init__(self) -> None:
        config = self.decoder.config
        shape = (self.num_pages, config.num_kv_heads, PAGE_TOKENS, config.head_dim)
        self.kv = [self._layer(shape) for _ in range(config.num_layers)]
        order = torch.randperm(self.num_pages - 1, generator=torch.Generator().manual_seed(2)) + 1
        self.free: list[int] = order.tolist()

    def _layer(self, shape: tuple[int, int, int, int]) -> KVLayer:
        if self.kv_dtype is not torch.int8:
            return KVLayer(*(torch.full(shape, torch.nan, dtype=self.kv_dtype) for _ in range(2)))
        values = [torch.full(shape, 99, dtype=torch.int8) for _ in range(2)]
        return KVLayer(*values, *(torch.full(shape[:3], torch.nan) for _ in range(2)))

    def pages(self, tokens: int) -> list[int]:
        return [self.free.pop() for _ in range(-(-tokens // PAGE_TOKENS))]

    def step(self, work: list[Work], adapted: Sequence[AdaptedRows] = ()) -> torch.Tensor:
        """[T, vocab] logits of all tokens of the batch."""
        tables = torch.zeros(len(work), max(len(pages) for _, _, pages in work), dtype=torch.int32)
        positions, slots = [], []
        for row, (tokens, start, pages) in enumerate(work):
            tables[row, : len(pages)] = torch.tensor(pages)
            at = torch.arange(start, start + len(tokens))
            positions.append(at)
            slots.append(torch.tensor(pages)[at // PAGE_TOKENS] * PAGE_TOKENS + at % PAGE_TOKENS)
        meta = AttentionMeta(
            query_lens=tuple(len(tokens) for tokens, _, _ in work),
            context_lens=tuple(start + len(tokens) for tokens, start, _ in work),
            positions=torch.cat(positions),
            slots=torch.cat(slots),
            block_tables=tables,
        )
        flat = torch.tensor([token for tokens, _, _ in work for token in tokens])
        more: dict[str, Any] = {"adapted": adapted} if adapted else {}
        return self.decoder.logits(self.decoder.forward(flat, self.kv, meta, **more))

    def whole(self, tokens: list[int]) -> torch.Tensor:
        """Logits of one sequence alone, in one prefill."""
        return self.step([(tokens, 0, self.pages(len(tokens)))])

    def chunked(self, tokens: list[int], sizes: list[int]) -> torch.Tensor:
        pages, at, parts = self.pages(len(tokens)), 0, []
        for size in sizes:
            parts.append(self.step([(tokens[at : at + size], at, pages)]))
            at += size
        assert at == len(tokens)
        return torch.cat(parts)


def load(files: ModelFiles, dtype: torch.dtype = torch.float32, config: DecoderConfig | None = None) -> Decoder:
    decoder = load_decoder(files, device=torch.device("cpu"), dtype=dtype, config=config)
    assert decoder.prove_rows()
    return decoder


def greedy(drive: Driver, prompt: list[int], count: int) -> list[int]:
    """The likeliest continuation, token by token over the cache."""
    pages = drive.pages(len(prompt) + count)
    tokens = [int(drive.step([(prompt, 0, pages)])[-1].argmax())]
    while len(tokens) < count:
        tokens.append(int(drive.step([(tokens[-1:], len(prompt) + len(tokens) - 1, pages)])[0].argmax()))
    return tokens
