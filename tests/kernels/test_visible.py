"""Attention where tokens see further than themselves, or less far."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edgewise.kernels.attention import paged_attention, plan_attention
from edgewise.kernels.paging import AttentionMeta

Paged = Callable[..., Any]
HEADS, KV_HEADS, HEAD_DIM = 4, 2, 16


def oracle(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bounds: list[tuple[int, int]]) -> torch.Tensor:
    """Plain softmax in float64; token t sees positions [first, last] of `bounds[t]`."""
    group = HEADS // KV_HEADS
    out = torch.empty(q.shape, dtype=torch.float64)
    for token, (first, last) in enumerate(bounds):
        keys = k[first : last + 1].double().repeat_interleave(group, dim=1)
        values = v[first : last + 1].double().repeat_interleave(group, dim=1)
        scores = torch.einsum("hd,khd->hk", q[token].double(), keys) * HEAD_DIM**-0.5
        out[token] = torch.einsum("hk,khd->hd", scores.softmax(-1), values)
    return out


def with_visible(meta: AttentionMeta, seen: list[int]) -> AttentionMeta:
    return replace(meta, visible=torch.tensor(seen))


@st.composite
def works(draw: st.DrawFn) -> tuple[list[tuple[int, int, int]], int | None, int]:
    """(length, first new token, count) of each sequence, a window, a seed for what each token sees."""
    window = draw(st.sampled_from([None, 7, 40, 300]))
    parts = []
    for length in draw(st.lists(st.sampled_from([1, 5, 17, 40, 255, 257, 300, 530]), min_size=1, max_size=5)):
        start = draw(st.one_of(st.just(length - 1), st.integers(0, length - 1)))
        parts.append((length, start, length - start))
    return parts, window, draw(st.integers(0, 2**16))


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(works())
def test_matches_softmax_in_float64(
    paged_sequences: Paged, works: tuple[list[tuple[int, int, int]], int | None, int]
) -> None:
    parts, window, seed = works
    chance = torch.Generator().manual_seed(seed)
    sequences = paged_sequences(KV_HEADS, HEAD_DIM, torch.float32, num_pages=200)
    work, queries, expected, seen = [], [], [], []
    for length, start, count in parts:
        sequence = sequences.add(length)
        work.append((sequence, start, count))
        q = sequences.random(count, HEADS, HEAD_DIM)
        firsts = [0 if window is None else max(0, at - window + 1) for at in range(start, length)]
        lasts = [int(torch.randint(first, length, (), generator=chance)) for first in firsts]
        keys, values = sequences.keys[sequence], sequences.values[sequence]
        expected.append(oracle(q, keys, values, list(zip(firsts, lasts, strict=True))))
        queries.append(q)
        seen += lasts
    meta = with_visible(sequences.meta(work), seen)
    out = paged_attention(torch.cat(queries), sequences.layer, meta, scale=HEAD_DIM**-0.5, window=window)
    torch.testing.assert_close(out.double(), torch.cat(expected), rtol=0, atol=2e-6)
    row = 0
    for index, (_, _, count) in enumerate(parts):  # alone: the same bits as among the others
        alone = with_visible(sequences.meta([work[index]]), seen[row : row + count])
        one = paged_attention(queries[index], sequences.layer, alone, scale=HEAD_DIM**-0.5, window=window)
        assert torch.equal(one, out[row : row + count])
        row += count


@pytest.mark.parametrize("window", [None, 64])
def test_its_own_position_changes_no_bit(paged_sequences: Paged, window: int | None) -> None:
    sequences = paged_sequences(KV_HEADS, HEAD_DIM, torch.float32, num_pages=200)
    work = [(sequences.add(length), start, length - start) for length, start in [(600, 200), (300, 299), (20, 0)]]
    q = sequences.random(421, HEADS, HEAD_DIM)
    meta = sequences.meta(work)
    plain = paged_attention(q, sequences.layer, meta, scale=0.25, window=window)
    said = paged_attention(q, sequences.layer, with_visible(meta, meta.positions.tolist()), scale=0.25, window=window)
    assert torch.equal(plain, said)


def test_a_picture_within_text_is_the_same_however_its_prompt_is_cut(paged_sequences: Paged) -> None:
    """Chunks that hold the picture whole; text before and after it sees what it always sees."""
    sequences = paged_sequences(KV_HEADS, HEAD_DIM, torch.float32, num_pages=60)
    sequence, picture = sequences.add(400), range(230, 290)
    q = sequences.random(400, HEADS, HEAD_DIM)
    seen = [picture[-1] if at in picture else at for at in range(400)]

    def run(first: int, last: int) -> torch.Tensor:
        meta = with_visible(sequences.meta([(sequence, first, last - first)]), seen[first:last])
        return paged_attention(q[first:last], sequences.layer, meta, scale=0.25, window=128)

    whole = run(0, 400)
    cuts = [0, 100, 229, 290, 291, 400]
    pieces = [run(first, last) for first, last in pairwise(cuts)]
    assert torch.equal(torch.cat(pieces), whole)
    causal = paged_attention(q, sequences.layer, sequences.meta([(sequence, 0, 400)]), scale=0.25, window=128)
    differs = (whole != causal).flatten(1).any(1)
    assert differs[picture[0] : picture[-1]].all()
    assert not differs[: picture[0]].any()
    assert not differs[picture[-1] :].any()


def test_poison_beyond_what_is_visible_is_not_seen(paged_sequences: Paged) -> None:
    """As text that sees a recording in a sequence's first pages, whose last page is not full."""
    sequences = paged_sequences(KV_HEADS, HEAD_DIM, torch.float32, num_pages=60)
    sequence = sequences.add(300)
    q = sequences.random(1, HEADS, HEAD_DIM)
    meta = with_visible(sequences.meta([(sequence, 299, 1)]), [140])
    out = paged_attention(q, sequences.layer, meta, scale=HEAD_DIM**-0.5)
    expected = oracle(q, sequences.keys[sequence], sequences.values[sequence], [(0, 140)])
    torch.testing.assert_close(out.double(), expected, rtol=0, atol=2e-6)


def test_wrong_positions_are_named(paged_sequences: Paged) -> None:
    sequences = paged_sequences(KV_HEADS, HEAD_DIM, torch.float32)
    meta = sequences.meta([(sequences.add(20), 10, 10)])

    def plan(seen: list[int], window: int | None = None) -> None:
        plan_attention(with_visible(meta, seen), heads=HEADS, kv_heads=KV_HEADS, head_dim=HEAD_DIM, window=window)

    with pytest.raises(ValueError, match=r"visible must be \[T\]"):
        plan([3])
    with pytest.raises(ValueError, match="each token must see"):
        plan([20] * 10)
    with pytest.raises(ValueError, match="each token must see"):
        plan([-1] * 10)
    with pytest.raises(ValueError, match="each token must see"):
        plan([10] * 10, 5)
