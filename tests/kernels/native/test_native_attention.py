"""Native attention against float64 on every instruction set, and the same bits in every batch, chunking and number of threads."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edgewise.kernels.attention import paged_attention
from edgewise.kernels.native import library
from edgewise.kernels.paging import SCALED_FORMATS, AttentionMeta, KVLayer

Paged = Callable[..., Any]
FORMATS = [torch.float32, torch.bfloat16, torch.float16, torch.int8, torch.float8_e4m3fn]
# Of the largest value. int8 pages are multiplied in integers: a score is off by at most half a step of the query, max|q| / 65024,
# times the sum of the key's magnitudes, which for keys like these stays under 5e-4. Lost low bytes would cost 4e-3.
MOST_ERROR = {torch.int8: 1e-3}
FLOAT_ERROR = 1e-5
# The same for one long sequence, always the same: what docs/kernels.md says.
LONG_ERROR = {torch.int8: 1e-4}
LONG_FLOAT_ERROR = 1e-6


@pytest.fixture
def one_thread() -> Iterator[None]:
    before = library.threads()
    library.set_threads(1)
    yield
    library.set_threads(before)


def attention(
    q: torch.Tensor, kv: KVLayer, meta: AttentionMeta, scale: float, window: int | None, softcap: float | None
) -> torch.Tensor:
    return paged_attention(q, kv, meta, scale=scale, window=window, softcap=softcap, back_end="native")


def stored(sequences: Any, sequence: int, which: str) -> torch.Tensor:
    """What the cache holds of a sequence, as float64 [tokens, kv_heads, head_dim]."""
    pages = torch.tensor(sequences.pages[sequence])
    values: torch.Tensor = getattr(sequences.layer, which)[pages].double()
    scales = getattr(sequences.layer, f"{which}_scale")
    if scales is not None:
        values = values * scales[pages].double().unsqueeze(-1)
    return values.transpose(1, 2).flatten(0, 1)[: len(sequences.keys[sequence])]


def oracle(
    sequences: Any,
    work: list[tuple[int, int, int]],
    q: torch.Tensor,
    meta: AttentionMeta,
    window: int | None,
    cap: float | None,
) -> torch.Tensor:
    """Plain softmax attention in float64 over what the pages hold."""
    parts, row = [], 0
    visible = meta.positions if meta.visible is None else meta.visible
    for sequence, _, count in work:
        queries = q[row : row + count].double()
        keys, values = (stored(sequences, sequence, which) for which in "kv")
        group = q.shape[1] // keys.shape[1]
        keys, values = keys.repeat_interleave(group, 1), values.repeat_interleave(group, 1)
        scores = torch.einsum("thd,khd->htk", queries, keys) / math.sqrt(q.shape[2])
        if cap is not None:
            scores = cap * torch.tanh(scores / cap)
        at = torch.arange(keys.shape[0])
        hidden = at > visible[row : row + count, None]
        if window is not None:
            hidden |= at <= meta.positions[row : row + count, None] - window
        parts.append(torch.einsum("htk,khd->thd", scores.masked_fill(hidden, -math.inf).softmax(-1), values))
        row += count
    return torch.cat(parts)


def attend(
    sequences: Any, work: list[tuple[int, int, int]], queries: list[torch.Tensor], window: int | None = None
) -> torch.Tensor:
    """Queries by sequence, cut as `work` says."""
    q = torch.cat([queries[sequence][start : start + count] for sequence, start, count in work])
    return attention(q, sequences.layer, sequences.meta(work), sequences.head_dim**-0.5, window, None)


def check(
    isas: list[str],
    sequences: Any,
    work: list[tuple[int, int, int]],
    q: torch.Tensor,
    window: int | None,
    cap: float | None,
) -> float:
    """The largest error relative to the largest value; all instruction sets must agree in every bit."""
    meta = sequences.meta(work)
    results = []
    for name in isas:
        library.use_isa(name)
        results.append(attention(q, sequences.layer, meta, sequences.head_dim**-0.5, window, cap))
    assert all(torch.equal(result, results[0]) for result in results)
    expected = oracle(sequences, work, q, meta, window, cap)
    return float((results[0] - expected).abs().max() / max(1.0, float(expected.abs().max())))


@given(data=st.data())
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_matches_float64_on_random_shapes(isas: list[str], paged_sequences: Paged, data: st.DataObject) -> None:
    """Slots that were never written, and all of page 0, are NaN."""
    dtype = data.draw(st.sampled_from(FORMATS))
    kv_heads, group = data.draw(st.integers(1, 3)), data.draw(st.sampled_from([1, 2, 3, 4, 5, 7, 8, 50]))
    head_dim = data.draw(st.sampled_from([2, 8, 10, 16, 24, 32, 64, 80, 96, 128, 256]))
    window = data.draw(st.one_of(st.none(), st.integers(1, 400)))
    cap = data.draw(st.sampled_from([None, None, 0.5, 30.0]))
    sequences = paged_sequences(kv_heads, head_dim, dtype, num_pages=120)
    work = []
    for _ in range(data.draw(st.integers(1, 3))):
        length = data.draw(st.one_of(st.integers(1, 40), st.integers(240, 600)))
        count = data.draw(st.integers(1, min(length, 40)))
        work.append((sequences.add(length), length - count, count))
    q = sequences.random(sum(count for _, _, count in work), kv_heads * group, head_dim)
    assert check(isas, sequences, work, q, window, cap) < MOST_ERROR.get(dtype, FLOAT_ERROR)


@pytest.mark.parametrize("dtype", FORMATS)
def test_error_to_float64_stays_small_at_long_context(
    isas: list[str], paged_sequences: Paged, dtype: torch.dtype
) -> None:
    sequences = paged_sequences(3, 64, dtype, num_pages=200)
    work = [(sequences.add(3000), 2999, 1)]
    error = check(isas, sequences, work, sequences.random(1, 9, 64) * 4, None, None)
    print(f"{dtype}: {error:.1e} of the largest value")
    assert error < LONG_ERROR.get(dtype, LONG_FLOAT_ERROR)


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("window", [None, 40])
def test_same_bits_in_any_batch_and_chunking(paged_sequences: Paged, dtype: torch.dtype, window: int | None) -> None:
    chance = random.Random(5)
    sequences = paged_sequences(2, 48, dtype, num_pages=250)
    lengths = [chance.choice([1, 5, 17, 255, 256, 257, 400]) for _ in range(7)] + [800]
    queries = [sequences.random(length, 6, 48) for length in lengths]
    for length in lengths:
        sequences.add(length)
    whole = [attend(sequences, [(s, 0, length)], queries, window) for s, length in enumerate(lengths)]

    together = attend(sequences, [(s, 0, length) for s, length in enumerate(lengths)], queries, window)
    assert torch.equal(together, torch.cat(whole))
    last = attend(sequences, [(s, length - 1, 1) for s, length in enumerate(lengths)], queries, window)
    assert torch.equal(last, torch.stack([rows[-1] for rows in whole]))
    at, long = 0, len(lengths) - 1
    while at < lengths[long]:
        count = min(chance.randint(1, 90), lengths[long] - at)
        chunk = attend(sequences, [(0, 0, lengths[0]), (long, at, count)], queries, window)[lengths[0] :]
        assert torch.equal(chunk, whole[long][at : at + count])
        at += count


def test_same_bits_with_any_number_of_threads(paged_sequences: Paged, one_thread: None) -> None:
    sequences = paged_sequences(3, 64, torch.int8, num_pages=120)
    work = [(sequences.add(length), length - count, count) for length, count in [(700, 90), (300, 1), (40, 40)]]
    queries = [sequences.random(700, 9, 64) for _ in work]
    alone = attend(sequences, work, queries)
    for threads in (2, 5):
        library.set_threads(threads)
        assert torch.equal(attend(sequences, work, queries), alone)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int8])
def test_tokens_see_what_visible_says(isas: list[str], paged_sequences: Paged, dtype: torch.dtype) -> None:
    sequences = paged_sequences(2, 32, dtype, num_pages=60)
    work = [(sequences.add(300), 0, 300)]
    meta = sequences.meta(work)
    positions = meta.positions
    visible = torch.where((positions >= 100) & (positions < 280), 279, positions)
    meta = replace(meta, visible=visible)
    q = sequences.random(300, 4, 32)
    expected = oracle(sequences, work, q, meta, 150, None)
    for name in isas:
        library.use_isa(name)
        out = attention(q, sequences.layer, meta, 32**-0.5, 150, None)
        torch.testing.assert_close(out.double(), expected, rtol=0, atol=MOST_ERROR.get(dtype, FLOAT_ERROR))


@pytest.mark.parametrize("dtype", FORMATS)
def test_poison_of_one_sequence_stays_there(isas: list[str], paged_sequences: Paged, dtype: torch.dtype) -> None:
    sequences = paged_sequences(2, 16, dtype)
    queries = [sequences.random(20, 4, 16) for _ in range(2)]
    sequences.add(20)
    sequences.add(20)
    page = sequences.pages[0][1]
    for name in isas:
        library.use_isa(name)
        clean = attend(sequences, [(1, 19, 1)], queries)
        for which in "kv":
            before = getattr(sequences.layer, which).clone(), getattr(sequences.layer, f"{which}_scale")
            if dtype in SCALED_FORMATS:
                scales = getattr(sequences.layer, f"{which}_scale")
                kept = scales[page].clone()
                scales[page] = torch.nan
            else:
                getattr(sequences.layer, which)[page] = torch.inf
            out = attend(sequences, [(0, 19, 1), (1, 19, 1)], queries)
            assert out[0].isnan().all() or (which == "v" and out[0].isinf().all())
            assert torch.equal(out[1:], clean)
            if dtype in SCALED_FORMATS:
                scales[page] = kept
            else:
                getattr(sequences.layer, which).copy_(before[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.int8])
@pytest.mark.parametrize("poison", [torch.nan, torch.inf])
def test_poisoned_query_is_nan_and_alone_so(
    isas: list[str], paged_sequences: Paged, dtype: torch.dtype, poison: float
) -> None:
    sequences = paged_sequences(1, 16, dtype)
    sequences.add(40)
    queries = [sequences.random(40, 2, 16)]
    for name in isas:
        library.use_isa(name)
        clean = attend(sequences, [(0, 10, 30)], queries)
        bad = [queries[0].clone()]
        bad[0][20, 1, 3] = poison
        out = attend(sequences, [(0, 10, 30)], bad)
        assert out[10, 1].isnan().all()
        out[10, 1] = clean[10, 1]
        assert torch.equal(out, clean)


def test_writes_every_output_and_padding_is_zero(
    isas: list[str], paged_sequences: Paged, monkeypatch: pytest.MonkeyPatch
) -> None:
    sequences = paged_sequences(2, 10, torch.int8)
    work = [(sequences.add(33), 0, 33)]
    q = sequences.random(36, 4, 10)
    monkeypatch.setattr(torch, "empty_like", lambda x: torch.full_like(x, torch.nan))
    for name in isas:
        library.use_isa(name)
        out = attention(q, sequences.layer, sequences.meta(work), 0.3, None, None)
        assert out.isfinite().all()
        assert not out[33:].any()


def test_result_has_the_dtype_of_the_queries(paged_sequences: Paged) -> None:
    sequences = paged_sequences(2, 16, torch.int8)
    sequences.add(5)
    q = sequences.random(5, 4, 16).bfloat16()
    out = attend(sequences, [(0, 0, 5)], [q])
    assert out.dtype is torch.bfloat16
    assert torch.equal(out, attend(sequences, [(0, 0, 5)], [q.float()]).bfloat16())


def test_pages_that_cannot_be_used_are_named(paged_sequences: Paged) -> None:
    sequences = paged_sequences(2, 16, torch.float32)
    sequences.add(5)
    meta = sequences.meta([(0, 0, 5)])
    q = sequences.random(5, 4, 16)
    strange = replace(sequences.layer, k=sequences.layer.k.double(), v=sequences.layer.v.double())
    with pytest.raises(ValueError, match="float64"):
        attention(q, strange, meta, 1.0, None, None)
    turned = replace(sequences.layer, v=sequences.layer.v.transpose(0, 1))
    with pytest.raises(ValueError, match="contiguous"):
        attention(q, turned, meta, 1.0, None, None)
    with pytest.raises(ValueError, match="multiple of kv_heads"):
        attention(q[:, :3], sequences.layer, meta, 1.0, None, None)


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("window", [None, 3])
def test_poison_of_one_token_reaches_only_rows_that_see_it(
    isas: list[str], paged_sequences: Paged, dtype: torch.dtype, window: int | None
) -> None:
    """A guessed token whose values overflow must not change the rows before it, which a chunk without it computes alike."""
    sequences = paged_sequences(2, 16, dtype)
    queries = [sequences.random(40, 4, 16)]
    sequences.add(40)
    last = 40 if window is None else 21 + window
    for which in "kv":
        layer = sequences.layer
        scales = getattr(layer, f"{which}_scale")
        target = getattr(layer, which) if scales is None else scales
        before = target.clone()
        target[sequences.pages[0][1], :, 21 - 16] = math.nan
        for name in isas:
            library.use_isa(name)
            whole = attend(sequences, [(0, 0, 40)], queries, window)
            assert torch.equal(whole[:21], attend(sequences, [(0, 0, 21)], queries, window))
            assert whole[:21].isfinite().all()
            assert whole[21:last].isnan().all()
            assert whole[last:].isfinite().all()
        target.copy_(before)
