"""The attention of prompts, under Triton's interpreter, compared with the reference operations one after the other."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from typing import Any

import pytest
import torch

from edgewise.kernels.attention import paged_attention
from edgewise.kernels.kv_write import write_kv
from edgewise.kernels.rms_norm import rms_norm
from edgewise.kernels.rope import apply_rope, rope_rows, rope_tables
from edgewise.kernels.rope_parameters import RopeParameters
from tests.kernels.interpreter import interpreted

prefill = interpreted("prefill_attention")
pytestmark = pytest.mark.filterwarnings("ignore:(overflow|invalid value):RuntimeWarning")  # numpy's, which interprets

Paged = Callable[..., Any]
Work = list[tuple[int, int, int]]
SMALL = prefill.Blocks(16, 32, 4, 2)


def attend(paged: Any, work: Work, q: torch.Tensor, blocks: Any = SMALL, **controls: Any) -> torch.Tensor:
    meta = paged.meta(work)
    starts = torch.tensor([0, *accumulate(meta.query_lens)], dtype=torch.int32)
    contexts = torch.tensor(meta.context_lens, dtype=torch.int32)
    out = torch.full_like(q, torch.nan)
    most = max(meta.query_lens)
    prefill.prefill_attention(
        q, paged.layer, starts, contexts, meta.block_tables, out, scale=0.2, max_query=most, blocks=blocks, **controls
    )
    return out


@pytest.mark.parametrize("stored", [None, torch.int8, torch.float8_e4m3fn])
@pytest.mark.parametrize(
    ("head_dim", "heads", "window", "softcap"), [(16, 4, None, None), (24, 2, 20, None), (32, 6, None, 3.0)]
)
def test_against_the_reference(
    paged_sequences: Paged,
    stored: torch.dtype | None,
    head_dim: int,
    heads: int,
    window: int | None,
    softcap: float | None,
) -> None:
    paged = paged_sequences(kv_heads=2, head_dim=head_dim, dtype=stored or torch.float32)
    for length in (90, 7, 33):
        paged.add(length)
    work = [(0, 45, 45), (1, 0, 7), (2, 32, 1)]
    q = paged.random(53, heads, head_dim)
    result = attend(paged, work, q, window=window, softcap=softcap)
    expected = paged_attention(q, paged.layer, paged.meta(work), scale=0.2, window=window, softcap=softcap)
    torch.testing.assert_close(result, expected, rtol=0, atol=1e-5)


def test_a_token_does_not_depend_on_its_chunk(paged_sequences: Paged) -> None:
    paged = paged_sequences(kv_heads=1, head_dim=16, dtype=torch.float32)
    paged.add(90)
    q = paged.random(90, 2, 16)
    whole = attend(paged, [(0, 0, 90)], q)
    parts = [attend(paged, [(0, first, count)], q[first : first + count]) for first, count in ((0, 32), (32, 58))]
    torch.testing.assert_close(torch.cat(parts), whole, rtol=0, atol=1e-6)  # numpy's products depend on their place


@pytest.mark.parametrize("stored", [torch.float32, torch.float16, torch.int8])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "rotary", "normed"), [(4, 2, 16, True), (3, 1, 8, False), (2, 2, 0, True)]
)
def test_heads_are_normalised_turned_and_stored(
    paged_sequences: Paged, stored: torch.dtype, heads: int, kv_heads: int, rotary: int, normed: bool
) -> None:
    paged, other = (paged_sequences(kv_heads=kv_heads, head_dim=16, dtype=stored) for _ in range(2))
    for each in (paged, other):
        each.pages.append([3, 5])
    meta = paged.meta([(0, 4, 20)])
    positions = torch.nn.functional.pad(meta.positions, (0, 2))
    slots = torch.nn.functional.pad(meta.slots, (0, 2), value=-1)
    qkv = paged.random(22, (heads + 2 * kv_heads) * 16)
    norm = paged.random(heads + kv_heads, 16) if normed else None
    table = rope_tables(RopeParameters(theta=100.0), rotary, 64) if rotary else None
    q = torch.full((22, heads, 16), torch.nan)
    cos, sin = (table.cos, table.sin) if table else (None, None)
    prefill.rope_append(qkv, paged.layer, positions, slots, cos, sin, q, heads=heads, qk_norm=norm, eps=1e-6)
    x = qkv.view(22, -1, 16)
    qk = x[:, : heads + kv_heads] if norm is None else rms_norm(x[:, : heads + kv_heads], norm, 1e-6)
    qk = qk if table is None else apply_rope(qk, rope_rows(table, positions))
    torch.testing.assert_close(q, qk[:, :heads], rtol=0, atol=1e-5)
    write_kv(other.layer, qk[:20, heads:], x[:20, heads + kv_heads :], meta.slots)
    for name in ("k", "v", "k_scale", "v_scale"):
        one, two = getattr(paged.layer, name), getattr(other.layer, name)
        if one is not None:
            torch.testing.assert_close(
                one.float(),
                two.float(),
                rtol=1e-3,
                atol=1.0 if name in "kv" and stored == torch.int8 else 1e-5,
                equal_nan=True,
            )


def test_wrong_arguments_are_named(paged_sequences: Paged) -> None:
    paged = paged_sequences(kv_heads=2, head_dim=16, dtype=torch.float32)
    paged.add(20)
    with pytest.raises(ValueError, match="q must be"):
        attend(paged, [(0, 0, 20)], paged.random(20, 3, 16))
    q = torch.empty(20, 2, 16)
    with pytest.raises(ValueError, match="qkv must be"):
        prefill.rope_append(torch.empty(20, 90), paged.layer, torch.zeros(20), torch.zeros(20), None, None, q, heads=2)
