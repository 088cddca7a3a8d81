"""The library's attention of whole prompts against the reference's."""

from __future__ import annotations

import pytest
import torch

from edgewise.kernels.attention import paged_attention
from edgewise.kernels.kv_write import write_kv
from edgewise.kernels.paging import PAGE_TOKENS, AttentionMeta, KVLayer
from edgewise.models.decoder.cuda.whole_prompts import all_whole, attend_whole

HEADS, KV_HEADS, DIM = 4, 2, 16


def meta_of(lens: tuple[int, ...], contexts: tuple[int, ...]) -> AttentionMeta:
    counts = [-(-context // PAGE_TOKENS) for context in contexts]
    order = torch.randperm(sum(counts), generator=torch.Generator().manual_seed(1)).int()
    tables = torch.zeros((len(lens), max(counts)), dtype=torch.int32)
    positions, slots = [], []
    for row, (new, context, count) in enumerate(zip(lens, contexts, counts, strict=True)):
        pages = order[sum(counts[:row]) :][:count]
        tables[row, :count] = pages
        at = torch.arange(context - new, context)
        positions.append(at)
        slots.append(pages.long()[at // PAGE_TOKENS] * PAGE_TOKENS + at % PAGE_TOKENS)
    return AttentionMeta(lens, contexts, torch.cat(positions), torch.cat(slots), tables)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int8, torch.float8_e4m3fn])
def test_the_librarys_attention_is_the_references(dtype: torch.dtype) -> None:
    lens = (1024, 1100)
    meta = meta_of(lens, lens)
    assert all_whole(meta)
    generator = torch.Generator().manual_seed(2)
    q, k, v = (torch.randn((sum(lens), heads, DIM), generator=generator) for heads in (HEADS, KV_HEADS, KV_HEADS))
    shape = (140, KV_HEADS, PAGE_TOKENS, DIM)
    kv = KVLayer(
        *(torch.zeros(shape).to(dtype) for _ in range(2)),
        *((None, None) if dtype == torch.float32 else (torch.zeros(shape[:3]) for _ in range(2))),
    )
    write_kv(kv, k, v, meta.slots)
    out = torch.full_like(q, torch.nan)
    attend_whole(q, kv, meta, out, DIM**-0.5)
    torch.testing.assert_close(out, paged_attention(q, kv, meta, scale=DIM**-0.5), rtol=1e-4, atol=1e-4)


def test_prompts_that_are_short_or_begun_are_not_whole() -> None:
    assert not all_whole(meta_of((1024, 100), (1024, 100)))
    assert not all_whole(meta_of((1024,), (1040,)))
