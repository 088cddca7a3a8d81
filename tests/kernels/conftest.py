"""Paged caches with hostile contents, for the operations that read and write them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import torch

from edgewise.kernels.kv_write import write_kv
from edgewise.kernels.paging import PAGE_TOKENS, SCALED_FORMATS, AttentionMeta, KVLayer


@dataclass
class PagedSequences:
    """Sequences of random keys and values in one layer. Every slot that was never written is NaN (or has a NaN scale)."""

    kv_heads: int
    head_dim: int
    dtype: torch.dtype
    num_pages: int = 64
    layer: KVLayer = field(init=False)
    keys: list[torch.Tensor] = field(default_factory=list)
    values: list[torch.Tensor] = field(default_factory=list)
    pages: list[list[int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.generator = torch.Generator().manual_seed(3)
        self.free = (torch.randperm(self.num_pages - 1, generator=self.generator) + 1).tolist()
        self.layer = empty_layer(self.num_pages, self.kv_heads, self.head_dim, self.dtype)

    def random(self, *shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=self.generator)

    def add(self, tokens: int) -> int:
        """A sequence, all of it in the cache."""
        self.keys.append(self.random(tokens, self.kv_heads, self.head_dim))
        self.values.append(self.random(tokens, self.kv_heads, self.head_dim))
        self.pages.append([self.free.pop() for _ in range(-(-tokens // PAGE_TOKENS))])
        sequence = len(self.keys) - 1
        meta = self.meta([(sequence, 0, tokens)])
        write_kv(self.layer, self.keys[-1], self.values[-1], meta.slots)
        return sequence

    def meta(self, work: list[tuple[int, int, int]]) -> AttentionMeta:
        """Layout of a batch of (sequence, first position, count)."""
        tables = torch.zeros(len(work), max(len(self.pages[s]) for s, _, _ in work), dtype=torch.int32)
        slots = []
        for row, (sequence, start, count) in enumerate(work):
            pages = torch.tensor(self.pages[sequence])
            tables[row, : len(pages)] = pages
            at = torch.arange(start, start + count)
            slots.append(pages[at // PAGE_TOKENS] * PAGE_TOKENS + at % PAGE_TOKENS)
        return AttentionMeta(
            query_lens=tuple(count for _, _, count in work),
            context_lens=tuple(start + count for _, start, count in work),
            positions=torch.cat([torch.arange(start, start + count) for _, start, count in work]),
            slots=torch.cat(slots),
            block_tables=tables,
        )


def empty_layer(num_pages: int, kv_heads: int, head_dim: int, dtype: torch.dtype) -> KVLayer:
    shape = (num_pages, kv_heads, PAGE_TOKENS, head_dim)
    if dtype not in SCALED_FORMATS:
        return KVLayer(*(torch.full(shape, torch.nan, dtype=dtype) for _ in range(2)))
    hostile = 77.0 if dtype is torch.int8 else torch.nan
    values = [torch.full(shape, hostile).to(dtype) for _ in range(2)]
    return KVLayer(*values, *(torch.full(shape[:3], torch.nan) for _ in range(2)))


@pytest.fixture
def paged_sequences() -> Callable[..., PagedSequences]:
    return PagedSequences
