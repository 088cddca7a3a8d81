"""The attention of decoding, under Triton's interpreter, compared with the reference operations one after the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edgewise.kernels.attention import paged_attention
from edgewise.kernels.kv_write import write_kv
from edgewise.kernels.rms_norm import rms_norm
from edgewise.kernels.rope import apply_rope, rope_rows, rope_tables
from edgewise.kernels.rope_parameters import RopeParameters
from tests.kernels.interpreter import interpreted

decode = interpreted("decode_attention")
pytestmark = pytest.mark.filterwarnings("ignore:(overflow|invalid value):RuntimeWarning")  # numpy's, which interprets

EPS = 1e-6
FORMS = [
    decode.AttentionForm(),
    decode.AttentionForm(512, 8),
    decode.AttentionForm(512, 4, halves=True),
    decode.AttentionForm(128, 4),
]
Paged = Callable[..., Any]


def attend(
    paged: Any,
    work: list[int],
    qkv: torch.Tensor,
    heads: int,
    *,
    rotary: int = 0,
    buckets: int = 1024,
    form: Any = decode.DEFAULT_FORM,
    **controls: Any,
) -> torch.Tensor:
    """Row i appends the last token of sequence work[i]; -1 is padding."""
    table = rope_tables(RopeParameters(theta=100.0), rotary, 2048) if rotary else None
    rows, lengths = len(work), [len(paged.keys[s]) if s >= 0 else 0 for s in work]
    meta = paged.meta([(s, len(paged.keys[s]) - 1, 1) for s in work if s >= 0])
    slots, tables = (
        torch.zeros(rows, dtype=torch.int64),
        torch.zeros(rows, meta.block_tables.shape[1], dtype=torch.int32),
    )
    real = torch.tensor([s >= 0 for s in work])
    slots[real], tables[real] = meta.slots, meta.block_tables
    out = torch.full((rows, heads * paged.head_dim), torch.nan, dtype=qkv.dtype)
    space = decode.Workspace.empty(rows, heads, paged.head_dim, decode.splits(buckets, form), torch.device("cpu"))
    for each in (space.values, space.maxima, space.sums):
        each.fill_(torch.nan)
    cos, sin = (table.cos, table.sin) if table else (None, None)
    decode.decode_attention(
        qkv,
        paged.layer,
        torch.tensor(lengths) - 1,
        slots,
        tables,
        cos,
        sin,
        out,
        space,
        heads=heads,
        scale=0.2,
        max_context=buckets,
        form=form,
        **controls,
    )
    return out


def expected(
    paged: Any,
    work: list[int],
    qkv: torch.Tensor,
    heads: int,
    *,
    rotary: int = 0,
    qk_norm: torch.Tensor | None = None,
    eps: float = 0.0,
    **controls: Any,
) -> torch.Tensor:
    kv_heads, rows = paged.kv_heads, len(work)
    x = qkv.float().view(rows, -1, paged.head_dim)
    qk, v = x[:, : heads + kv_heads], x[:, heads + kv_heads :]
    meta = paged.meta([(s, len(paged.keys[s]) - 1, 1) for s in work])
    if qk_norm is not None:
        qk = rms_norm(qk, qk_norm, eps)
    if rotary:
        table = rope_tables(RopeParameters(theta=100.0), rotary, 2048)
        qk = apply_rope(qk, rope_rows(table, meta.positions))
    write_kv(paged.layer, qk[:, heads:], v, meta.slots)
    return paged_attention(qk[:, :heads], paged.layer, meta, scale=0.2, **controls).view(rows, -1)


def poison_last(paged: Any, sequence: int) -> None:
    """What the kernel must write itself."""
    at = len(paged.keys[sequence]) - 1
    page = paged.pages[sequence][at // 16]
    layer = paged.layer
    for pages in (layer.k, layer.v) if layer.k_scale is None else (layer.k_scale, layer.v_scale):
        pages[page, :, at % 16] = torch.nan


@pytest.mark.parametrize("stored", [torch.float32, torch.int8, torch.float8_e4m3fn])
def test_keys_that_are_stored_already(paged_sequences: Paged, stored: torch.dtype) -> None:
    """Two rows are successive positions of one sequence; the later token is hidden from the earlier row."""
    paged = paged_sequences(kv_heads=2, head_dim=16, dtype=stored)
    paged.add(70)
    meta = paged.meta([(0, 68, 2)])
    qkv = paged.random(2, 8 * 16)
    out = torch.full((2, 64), torch.nan)
    space = decode.Workspace.empty(2, 4, 16, 1, torch.device("cpu"))
    decode.decode_attention(
        qkv, paged.layer, meta.positions, meta.slots, meta.block_tables.expand(2, -1).contiguous(), None, None, out, space,
        heads=4, scale=0.2, max_context=256, append=False,
    )  # fmt: skip
    wanted = paged_attention(qkv[:, :64].view(2, 4, 16), paged.layer, meta, scale=0.2)
    # Of 8-bit pages queries and weights are rounded to float16.
    torch.testing.assert_close(out.view(2, 4, 16), wanted, rtol=0, atol=1e-5 if stored == torch.float32 else 5e-3)


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lengths=st.lists(st.integers(1, 40) | st.sampled_from([256, 257, 513, 520]), min_size=1, max_size=3),
    dtype=st.sampled_from([torch.float32, torch.float16]),
    stored=st.sampled_from([None, torch.int8]),  # the interpreter rounds to fp8 wrongly
    head_dim=st.sampled_from([16, 24, 32]),
    shape=st.sampled_from([(1, 1), (4, 2), (9, 3)]),
    rotates=st.booleans(),
    normed=st.booleans(),
    window=st.sampled_from([None, 1, 40, 300]),
    softcap=st.sampled_from([None, 3.0]),
    form=st.sampled_from(FORMS),
)
def test_against_the_operations_one_after_the_other(
    paged_sequences: Paged,
    lengths: list[int],
    dtype: torch.dtype,
    stored: torch.dtype | None,
    head_dim: int,
    shape: tuple[int, int],
    rotates: bool,
    normed: bool,
    window: int | None,
    softcap: float | None,
    form: Any,
) -> None:
    heads, kv_heads = shape
    paged = paged_sequences(kv_heads=kv_heads, head_dim=head_dim, dtype=stored or dtype, num_pages=120)
    work = [paged.add(length) for length in lengths]
    qkv = paged.random(len(work), (heads + 2 * kv_heads) * head_dim).to(dtype)
    controls: dict[str, Any] = {"rotary": head_dim // 4 * 2 if rotates else 0, "window": window, "softcap": softcap}
    if normed:
        controls |= {"qk_norm": paged.random(heads + kv_heads, head_dim), "eps": EPS}
    for each in work:
        poison_last(paged, each)
    blocks = decode.AttentionBlocks(stages=2, fetched=True)
    result = attend(paged, work, qkv, heads, form=form, blocks=blocks, **controls)
    assert result.isfinite().all()
    wanted = expected(paged, work, qkv, heads, **controls)
    torch.testing.assert_close(
        result.float(), wanted, rtol=0, atol=1e-4 if dtype == torch.float32 and stored is None else 1e-2
    )


@pytest.mark.parametrize("stored", [torch.float32, torch.float16, torch.int8])
def test_the_new_token_is_stored_as_the_reference_stores_it(paged_sequences: Paged, stored: torch.dtype) -> None:
    layers = []
    for run in (attend, expected):
        paged = paged_sequences(kv_heads=2, head_dim=16, dtype=stored)
        work = [paged.add(17), paged.add(5)]
        qkv = paged.random(2, 8 * 16)
        qkv[0, 64:80] = 0.0  # a row whose scale is 0
        qkv[1, 100] = torch.inf
        for each in work:
            poison_last(paged, each)
        run(paged, work, qkv, 4)
        layers.append(paged.layer)
    for name in ("k", "v", "k_scale", "v_scale"):
        one, other = (getattr(layer, name) for layer in layers)
        if one is not None:
            assert torch.equal(one.float().nan_to_num(1e9), other.float().nan_to_num(1e9))


@pytest.mark.parametrize(
    ("stored", "form"), [(torch.float32, FORMS[0]), (torch.float32, FORMS[1]), (torch.int8, FORMS[2])]
)
def test_a_row_does_not_depend_on_its_neighbours_or_on_the_grid(
    paged_sequences: Paged, stored: torch.dtype, form: Any
) -> None:
    paged = paged_sequences(kv_heads=2, head_dim=16, dtype=stored)
    work = [paged.add(length) for length in (600, 17, 40)]
    qkv = paged.random(3, 8 * 16)
    together = attend(paged, work, qkv, 4, form=form)
    assert torch.equal(attend(paged, work[:1], qkv[:1], 4, buckets=2048, form=form), together[:1])
    assert torch.equal(attend(paged, work[1:2], qkv[1:2], 4, buckets=512, form=form), together[1:2])


def test_rows_of_padding_are_zero_and_store_nothing(paged_sequences: Paged) -> None:
    paged = paged_sequences(kv_heads=1, head_dim=16, dtype=torch.float32)
    work = [paged.add(20), -1]
    for buckets in (512, 1024):
        before = paged.layer.k.isnan().sum()
        result = attend(paged, work, paged.random(2, 4 * 16), 2, buckets=buckets)
        assert torch.equal(result[1], torch.zeros(32))
        assert result[0].isfinite().all()
        assert paged.layer.k.isnan().sum() == before


def test_wrong_arguments_are_named(paged_sequences: Paged) -> None:
    paged = paged_sequences(kv_heads=1, head_dim=16, dtype=torch.float32)
    work = [paged.add(20)]
    with pytest.raises(ValueError, match="qkv must be"):
        attend(paged, work, paged.random(1, 5 * 16), 2)
