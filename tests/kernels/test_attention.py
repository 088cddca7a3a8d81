"""Attention against a float64 oracle, and the same bits in every batch and chunking."""

from __future__ import annotations

import math
import random
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

from edgewise.kernels.attention import Scratch, paged_attention, plan_attention
from edgewise.kernels.paging import SCALED_FORMATS, AttentionMeta, KVLayer

Paged = Callable[..., Any]
SHAPES = [(9, 3, 64), (4, 1, 32), (14, 2, 80), (2, 2, 16), (20, 1, 8)]
DTYPES = [torch.float32, torch.bfloat16, torch.int8, torch.float8_e4m3fn]


def stored(layer: KVLayer, sequences: Any, sequence: int, which: str) -> torch.Tensor:
    """What the cache holds of a sequence, as float64 [tokens, kv_heads, head_dim]."""
    pages = torch.tensor(sequences.pages[sequence])
    values: torch.Tensor = getattr(layer, which)[pages].double()
    scales = getattr(layer, f"{which}_scale")
    if scales is not None:
        values = values * scales[pages].double().unsqueeze(-1)
    return values.transpose(1, 2).flatten(0, 1)[: len(sequences.keys[sequence])]


def oracle(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, start: int, window: int | None, softcap: float | None = None
) -> torch.Tensor:
    """Plain softmax attention in float64, one token and head at a time."""
    group = q.shape[1] // k.shape[1]
    out = torch.empty(q.shape, dtype=torch.float64)
    for token in range(q.shape[0]):
        last = start + token + 1
        first = 0 if window is None else max(0, last - window)
        for head in range(q.shape[1]):
            keys, values = k[first:last, head // group], v[first:last, head // group]
            scores = keys @ q[token, head].double() / math.sqrt(q.shape[2])
            if softcap is not None:
                scores = softcap * torch.tanh(scores / softcap)
            out[token, head] = torch.softmax(scores, 0) @ values
    return out


def attend(
    sequences: Any, work: list[tuple[int, int, int]], queries: list[torch.Tensor], **options: Any
) -> torch.Tensor:
    """Queries by sequence, cut as `work` says."""
    q = torch.cat([queries[sequence][start : start + count] for sequence, start, count in work])
    scale = sequences.head_dim**-0.5
    return paged_attention(q, sequences.layer, sequences.meta(work), scale=scale, **options)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("window", [None, 20, 300])
def test_matches_softmax_in_float64(paged_sequences: Paged, dtype: torch.dtype, window: int | None) -> None:
    for heads, kv_heads, head_dim in SHAPES:
        sequences = paged_sequences(kv_heads, head_dim, dtype, num_pages=80)
        lengths = [1, 16, 33, 300, 530]
        queries = [sequences.random(length, heads, head_dim) for length in lengths]
        work = [
            (sequences.add(length), length - count, count)
            for length, count in zip(lengths, [1, 3, 1, 5, 1], strict=True)
        ]
        out = attend(sequences, work, queries, window=window)
        parts = []
        for s, at, _ in work:
            k, v = (stored(sequences.layer, sequences, s, which) for which in "kv")
            parts.append(oracle(queries[s][at:], k, v, at, window))
        expected = torch.cat(parts)
        torch.testing.assert_close(out.double(), expected, rtol=0, atol=2e-6)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("softcap", [0.3, 5.0])
def test_softcap_bounds_scores_before_the_mask(paged_sequences: Paged, dtype: torch.dtype, softcap: float) -> None:
    sequences = paged_sequences(2, 32, dtype, num_pages=80)
    lengths = [1, 40, 300]
    queries = [sequences.random(length, 4, 32) for length in lengths]
    work = [(sequences.add(length), 0, length) for length in lengths]
    out = attend(sequences, work, queries, softcap=softcap, window=35)
    parts = []
    for s, at, _ in work:
        k, v = (stored(sequences.layer, sequences, s, which) for which in "kv")
        parts.append(oracle(queries[s][at:], k, v, at, 35, softcap))
    torch.testing.assert_close(out.double(), torch.cat(parts), rtol=0, atol=2e-6)
    assert torch.equal(attend(sequences, [(2, 299, 1)], queries, softcap=softcap, window=35)[0], out[-1])
    with pytest.raises(ValueError, match="softcap"):
        attend(sequences, work, queries, softcap=0.0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("window", [None, 40])
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), SHAPES[:3])
def test_same_bits_in_any_batch_and_chunking(
    paged_sequences: Paged, dtype: torch.dtype, window: int | None, heads: int, kv_heads: int, head_dim: int
) -> None:
    chance = random.Random(5)
    sequences = paged_sequences(kv_heads, head_dim, dtype, num_pages=400)
    lengths = [chance.choice([1, 5, 17, 255, 256, 257, 400, 700]) for _ in range(15)] + [800]
    queries = [sequences.random(length, heads, head_dim) for length in lengths]
    for length in lengths:
        sequences.add(length)
    whole = [attend(sequences, [(s, 0, length)], queries, window=window) for s, length in enumerate(lengths)]

    together = attend(sequences, [(s, 0, length) for s, length in enumerate(lengths)], queries, window=window)
    assert torch.equal(together, torch.cat(whole))

    decode = attend(sequences, [(s, length - 1, 1) for s, length in enumerate(lengths)], queries, window=window)
    assert torch.equal(decode, torch.stack([rows[-1] for rows in whole]))

    mixed = [
        (s, at, chance.randint(1, length - at)) for s, length in enumerate(lengths) for at in [chance.randrange(length)]
    ]
    chunks = attend(sequences, mixed, queries, window=window)
    assert torch.equal(chunks, torch.cat([whole[s][at : at + count] for s, at, count in mixed]))

    at, long = 0, 15
    while at < lengths[long]:
        count = min(chance.randint(1, 90), lengths[long] - at)
        assert torch.equal(attend(sequences, [(long, at, count)], queries, window=window), whole[long][at : at + count])
        at += count
    one_by_one = [attend(sequences, [(long, at, 1)], queries, window=window) for at in range(0, lengths[long], 7)]
    assert torch.equal(torch.cat(one_by_one), whole[long][::7])


def test_scratch_limits_change_no_bit(paged_sequences: Paged, monkeypatch: pytest.MonkeyPatch) -> None:
    sequences = paged_sequences(4, 32, torch.float32, num_pages=300)
    lengths = [700, 700, 1200, 90]
    queries = [sequences.random(length, 8, 32) for length in lengths]
    work = [
        (sequences.add(length), length - count, count) for length, count in zip(lengths, [1, 300, 1, 1], strict=True)
    ]
    roomy = attend(sequences, work, queries)
    plan = "edgewise.kernels.reference.attention_plan."
    monkeypatch.setattr(plan + "SCORE_BYTES", 100_000)
    monkeypatch.setattr(plan + "GATHER_BYTES", 200_000)
    scratch = Scratch()
    cramped = plan_attention(sequences.meta(work), heads=8, kv_heads=4, head_dim=32, scratch=scratch)
    assert len(cramped.groups) > 10
    assert max(len(group.segments) for group in cramped.groups) > 1
    assert min(group.head_step for group in cramped.groups) < 4
    assert torch.equal(attend(sequences, work, queries, plan=cramped), roomy)
    assert scratch.nbytes < 400_000


def test_padding_rows_come_back_as_zero(paged_sequences: Paged) -> None:
    sequences = paged_sequences(2, 16, torch.float32)
    sequences.add(5)
    q = sequences.random(8, 4, 16)
    out = paged_attention(q, sequences.layer, sequences.meta([(0, 0, 5)]), scale=0.25)
    assert out.shape == q.shape
    assert not out[5:].any()
    assert out[:5].isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.int8, torch.float8_e4m3fn])
def test_poison_of_one_sequence_stays_there(paged_sequences: Paged, dtype: torch.dtype) -> None:
    sequences = paged_sequences(2, 16, dtype)
    queries = [sequences.random(20, 4, 16) for _ in range(2)]
    sequences.add(20)
    sequences.add(20)
    clean = attend(sequences, [(1, 19, 1)], queries)
    page = sequences.pages[0][1]
    if dtype in SCALED_FORMATS:
        sequences.layer.k_scale[page] = sequences.layer.v_scale[page] = torch.nan
    else:
        sequences.layer.k[page] = sequences.layer.v[page] = torch.inf
    out = attend(sequences, [(0, 19, 1), (1, 19, 1)], queries)
    assert out[0].isnan().all()
    assert torch.equal(out[1:], clean)


def test_result_has_the_dtype_of_the_queries(paged_sequences: Paged) -> None:
    sequences = paged_sequences(2, 16, torch.float32)
    sequences.add(5)
    q = sequences.random(5, 4, 16).bfloat16()
    meta = sequences.meta([(0, 0, 5)])
    out = paged_attention(q, sequences.layer, meta, scale=0.25)
    assert out.dtype is torch.bfloat16
    assert torch.equal(out, paged_attention(q.float(), sequences.layer, meta, scale=0.25).bfloat16())


LONG_CHUNK = """
import resource, torch
from edgewise.kernels.attention import paged_attention
from edgewise.kernels.paging import AttentionMeta, KVLayer
context, new, pages = 32768, 512, 2048
kv = KVLayer(torch.ones(pages, 3, 16, 64), torch.ones(pages, 3, 16, 64))
meta = AttentionMeta((new,), (context,), torch.arange(context - new, context), torch.arange(context - new, context),
                     torch.arange(pages, dtype=torch.int32)[None])
q = torch.ones(new, 9, 64)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
out = paged_attention(q, kv, meta, scale=0.125)
assert torch.allclose(out, torch.ones(())), out
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_long_prefill_chunk_has_bounded_scratch() -> None:
    done = subprocess.run([sys.executable, "-c", LONG_CHUNK], capture_output=True, text=True, timeout=120, check=True)
    assert int(done.stdout) < 150 * 1024  # KiB


def small_meta(query: int = 1, context: int = 4) -> AttentionMeta:
    at = torch.arange(context - query, context)
    return AttentionMeta((query,), (context,), at, at + 16, torch.ones(1, 1, dtype=torch.int32))


def test_wrong_arguments_are_named() -> None:
    layer = KVLayer(torch.zeros(4, 2, 16, 8), torch.zeros(4, 2, 16, 8))
    q = torch.zeros(1, 4, 8)
    with pytest.raises(ValueError, match="multiple of kv_heads"):
        paged_attention(torch.zeros(1, 3, 8), layer, small_meta(), scale=1.0)
    with pytest.raises(ValueError, match="q must be"):
        paged_attention(torch.zeros(1, 4, 9), layer, small_meta(), scale=1.0)
    with pytest.raises(ValueError, match="q must be"):
        paged_attention(q, layer, small_meta(query=2), scale=1.0)
    with pytest.raises(ValueError, match="window"):
        paged_attention(q, layer, small_meta(), scale=1.0, window=0)
    with pytest.raises(ValueError, match="query length"):
        paged_attention(q, layer, AttentionMeta((1,), (0,), *[torch.zeros(1, dtype=torch.int64)] * 3), scale=1.0)
    plan = plan_attention(small_meta(), heads=4, kv_heads=2, head_dim=8, window=3)
    with pytest.raises(ValueError, match="plan was made for"):
        paged_attention(q, layer, small_meta(), scale=1.0, plan=plan)
    with pytest.raises(ValueError, match="k_scale"):
        paged_attention(q, KVLayer(layer.k.to(torch.int8), layer.v.to(torch.int8)), small_meta(), scale=1.0)
