"""The kernels for GPUs, compared with torch; a GPU's own check is `tests.accept.engine_8`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from edgewise.kernels import row_sum as public_sum
from edgewise.kernels import tile_product as public_product
from edgewise.kernels.attention import paged_attention
from tests.kernels.interpreter import interpreted

product = interpreted("tile_product").tile_product
row_sum = interpreted("row_sum").row_sum
why_not = interpreted("trial").why_not

SIZES = st.integers(1, 70) | st.sampled_from([32, 64, 80, 96, 128, 256])


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def odd(x: torch.Tensor) -> torch.Tensor:
    """The same values at an address that is no multiple of 16."""
    return torch.cat((torch.zeros(1), x.flatten()))[1:].view(x.shape)


@settings(max_examples=30, deadline=None)
@given(
    batch=st.integers(1, 5),
    rows=st.integers(1, 70),
    inner=SIZES,
    columns=SIZES,
    transposed=st.booleans(),
    moved=st.booleans(),
    give_out=st.booleans(),
)
def test_product_matches_float64(
    batch: int, rows: int, inner: int, columns: int, transposed: bool, moved: bool, give_out: bool
) -> None:
    a = random(batch, rows, inner)
    b = random(batch, columns, inner, seed=1).transpose(1, 2) if transposed else random(batch, inner, columns, seed=1)
    out = torch.full((batch, rows, columns), torch.nan)
    if moved:
        a, out = odd(a), odd(out)
        b = odd(b.transpose(1, 2)).transpose(1, 2) if transposed else odd(b)
    result = product(a, b, out if give_out else None)
    assert not give_out or result is out
    torch.testing.assert_close(result.double(), torch.bmm(a.double(), b.double()), rtol=0, atol=2e-4)


@settings(max_examples=15, deadline=None)
@given(batch=st.integers(1, 6), rows=st.integers(1, 70), inner=SIZES, columns=SIZES, data=st.data())
def test_a_row_of_a_product_does_not_depend_on_its_neighbours(
    batch: int, rows: int, inner: int, columns: int, data: st.DataObject
) -> None:
    a, b = random(batch, rows, inner), random(batch, inner, columns, seed=1)
    whole = product(a, b, None)
    item, row = data.draw(st.integers(0, batch - 1)), data.draw(st.integers(0, rows - 1))
    assert torch.equal(product(a[item, row][None, None], b[item][None], None)[0, 0], whole[item, row])


def test_strided_inputs_are_taken_as_they_are() -> None:
    a, b = random(3, 20, 80)[:, ::2, ::2], random(3, 40, 60)[:, :, ::3]
    out = torch.full((3, 10, 40), torch.nan)[:, :, ::2]
    torch.testing.assert_close(product(a, b, out), torch.bmm(a.contiguous(), b.contiguous()))
    torch.testing.assert_close(product(a[:1].expand(3, -1, -1), b, None)[2], a[0] @ b[2])
    assert product(a[:0], b[:0], None).shape == (0, 10, 20)


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # numpy's, which the interpreter computes with
def test_nan_stays_in_its_row_and_column() -> None:
    a, b = random(2, 20, 48), random(2, 48, 70)
    a[0, 3, 5], b[1, 7, 65] = torch.nan, torch.inf
    result = product(a, b, None)
    assert result[0, 3].isnan().all()
    assert result[1, :, 65].isinf().all()
    result[0, 3], result[1, :, 65] = 0.0, 0.0
    assert result.isfinite().all()


@settings(max_examples=15, deadline=None)
@given(rows=st.integers(1, 40), columns=st.integers(1, 700), moved=st.booleans())
def test_sums(rows: int, columns: int, moved: bool) -> None:
    x = random(2, rows, columns)
    sums = row_sum(odd(x) if moved else x)
    torch.testing.assert_close(sums.double(), x.double().sum(-1), rtol=0, atol=1e-3)
    assert torch.equal(row_sum(x[1, rows - 1]), sums[1, rows - 1])


def test_the_trial_passes_here() -> None:
    assert why_not(torch.device("cpu")) is None


@pytest.mark.parametrize("window", [None, 64])
def test_attention_of_a_picture_over_these_kernels(
    paged_sequences: Callable[..., Any], window: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tokens 250 to 289 of the second sequence see each other in both directions."""
    paged = paged_sequences(kv_heads=2, head_dim=32, dtype=torch.float32)
    for length in (270, 300):
        paged.add(length)
    work = [(0, 269, 1), (1, 240, 60)]
    meta = paged.meta(work)
    visible = torch.where((meta.positions >= 250) & (meta.positions < 290), 289, meta.positions)
    visible[0] = 269
    meta = replace(meta, visible=visible)
    q = random(61, 4, 32)
    expected = paged_attention(q, paged.layer, meta, scale=0.2, window=window)
    for public in (public_product, public_sum):
        monkeypatch.setattr(public, "compiled", lambda device: True)
    result = paged_attention(q, paged.layer, meta, scale=0.2, window=window)
    torch.testing.assert_close(result, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("head_dim", "dtype"), [(80, torch.float32), (32, torch.int8)])
def test_attention_over_these_kernels(
    paged_sequences: Callable[..., Any], head_dim: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    paged = paged_sequences(kv_heads=2, head_dim=head_dim, dtype=dtype)
    lengths = (270, 17, 300)
    for length in lengths:
        paged.add(length)
    work = [(0, 269, 1), (1, 16, 1), (2, 260, 40)]
    q = random(42, 4, head_dim)
    expected = paged_attention(q, paged.layer, paged.meta(work), scale=head_dim**-0.5)
    for public in (public_product, public_sum):
        monkeypatch.setattr(public, "compiled", lambda device: True)
    result = paged_attention(q, paged.layer, paged.meta(work), scale=head_dim**-0.5)
    torch.testing.assert_close(result, expected, rtol=0, atol=1e-5)
    alone = paged_attention(q[:1], paged.layer, paged.meta(work[:1]), scale=head_dim**-0.5)
    chunk = paged_attention(q[12:42], paged.layer, paged.meta([(2, 270, 30)]), scale=head_dim**-0.5)
    assert torch.equal(alone, result[:1])
    assert torch.equal(chunk, result[12:])
