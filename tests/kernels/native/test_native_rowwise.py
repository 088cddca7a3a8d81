"""Native norms, rotation, soft cap, storing of keys and values, and argmax against the reference, on every instruction set."""

from __future__ import annotations

import ctypes
import math

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edgewise.kernels.kv_write import write_kv
from edgewise.kernels.native import library
from edgewise.kernels.paging import SCALED_FORMATS, KVLayer
from edgewise.kernels.reference import softcap as reference_cap
from edgewise.kernels.rms_norm import rms_norm
from edgewise.kernels.rope import RopeTable, apply_rope, rope_rows
from edgewise.kernels.softcap import softcap

FORMATS = [torch.float32, torch.bfloat16, torch.float16, torch.int8, torch.float8_e4m3fn]
FLOATS = st.floats(width=32, allow_nan=True, allow_infinity=True)
quick = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def layer(dtype: torch.dtype, kv_heads: int, head_dim: int) -> KVLayer:
    shape = (2, kv_heads, 16, head_dim)
    pages = [torch.zeros(shape).to(dtype) for _ in range(2)]
    if dtype not in SCALED_FORMATS:
        return KVLayer(*pages)
    return KVLayer(*pages, *(torch.full(shape[:3], 7.0) for _ in range(2)))


def bits(x: torch.Tensor) -> torch.Tensor:
    """NaN of any payload is one NaN."""
    if x.dtype.itemsize == 1:
        return x.view(torch.uint8)
    kinds = {2: torch.int16, 4: torch.int32}
    return x.view(kinds[x.dtype.itemsize]).masked_fill(x.isnan(), -1)


def same_pages(ours: KVLayer, theirs: KVLayer) -> bool:
    pairs = ((ours.k, theirs.k), (ours.v, theirs.v), (ours.k_scale, theirs.k_scale), (ours.v_scale, theirs.v_scale))
    return all(b is None or (a is not None and torch.equal(bits(a), bits(b))) for a, b in pairs)


@given(data=st.data())
@quick
def test_stores_the_bits_of_the_reference(isas: list[str], data: st.DataObject) -> None:
    dtype = data.draw(st.sampled_from(FORMATS))
    kv_heads, head_dim, tokens = (data.draw(st.integers(1, n)) for n in (3, 70, 4))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 1000)))
    scale = 10.0 ** data.draw(st.integers(-42, 36))
    k, v = (torch.randn((tokens, kv_heads, head_dim), generator=generator) * scale for _ in range(2))
    for x in (k, v):
        for _ in range(data.draw(st.integers(0, 2))):
            x.view(-1)[data.draw(st.integers(0, x.numel() - 1))] = data.draw(FLOATS)
    slots = torch.randperm(32, generator=generator)[:tokens]
    expected = layer(dtype, kv_heads, head_dim)
    write_kv(expected, k, v, slots)
    for name in isas:
        library.use_isa(name)
        found = layer(dtype, kv_heads, head_dim)
        write_kv(found, k, v, slots, back_end="native")
        assert same_pages(found, expected), name


@pytest.mark.parametrize("dtype", SCALED_FORMATS)
def test_every_code_is_rounded_half_to_even(isas: list[str], dtype: torch.dtype) -> None:
    """All codes, and what lies half-way between neighbours, in a row whose scale is 1."""
    codes = torch.arange(256, dtype=torch.uint8).view(dtype).float()
    codes = torch.tensor(sorted(set(codes[codes.isfinite() & (codes.abs() <= 448)].tolist())))
    between = (codes[1:] + codes[:-1]) / 2
    most = codes.max()
    values = torch.cat((codes, between, between.nextafter(-most), between.nextafter(most)))
    k = torch.cat((values, most[None])).view(1, 1, -1)
    expected = layer(dtype, 1, k.shape[2])
    write_kv(expected, k, -k, torch.tensor([3]))
    for name in isas:
        library.use_isa(name)
        found = layer(dtype, 1, k.shape[2])
        write_kv(found, k, -k, torch.tensor([3]), back_end="native")
        assert same_pages(found, expected), name


@pytest.mark.parametrize("dtype", SCALED_FORMATS)
@pytest.mark.parametrize("poison", [torch.nan, torch.inf, -torch.inf])
def test_a_poisoned_row_has_the_scale_nan(isas: list[str], dtype: torch.dtype, poison: float) -> None:
    k = torch.ones(1, 2, 20)
    k[0, 1, 17] = poison
    for name in isas:
        library.use_isa(name)
        found = layer(dtype, 2, 20)
        write_kv(found, k, torch.zeros_like(k), torch.tensor([5]), back_end="native")
        assert found.k_scale is not None
        assert found.v_scale is not None
        assert found.k_scale[0, :, 5].isnan().tolist() == [False, True]
        assert not found.k[0, 1, 5].float().any()
        assert found.v_scale[0, :, 5].tolist() == [0.0, 0.0]


@given(rows=st.integers(1, 3), cols=st.integers(1, 700), seed=st.integers(0, 99))
@quick
def test_norm_matches_float64(isas: list[str], rows: int, cols: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    x, weight = torch.randn((rows, cols), generator=generator) * 3, torch.randn(cols, generator=generator)
    exact = x.double() / (x.double().square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight
    results = []
    for name in isas:
        library.use_isa(name)
        results.append(rms_norm(x, weight, 1e-5, back_end="native"))
        torch.testing.assert_close(results[-1].double(), exact, rtol=2e-6, atol=1e-7)
        assert torch.equal(results[-1], results[0])
        assert torch.equal(rms_norm(x[:1], weight, 1e-5, back_end="native"), results[-1][:1])


def test_norm_takes_a_weight_for_each_head_and_any_dtype(isas: list[str]) -> None:
    x, weight = torch.randn(4, 3, 24).bfloat16(), torch.randn(3, 24)
    for name in isas:
        library.use_isa(name)
        found = rms_norm(x, weight, 1e-6, torch.bfloat16, back_end="native")
        assert found.dtype is torch.bfloat16
        torch.testing.assert_close(found, rms_norm(x, weight, 1e-6, torch.bfloat16))
        assert rms_norm(x[:0], weight, 1e-6, back_end="native").shape == (0, 3, 24)


@given(half=st.integers(1, 40), rest=st.integers(0, 9), tokens=st.integers(1, 3))
@quick
def test_rotation_has_the_bits_of_the_reference(isas: list[str], half: int, rest: int, tokens: int) -> None:
    angles = torch.randn(50, half)
    rows = rope_rows(RopeTable(angles.cos(), angles.sin()), torch.randint(50, (tokens,)))
    x = torch.randn(tokens, 2, 2 * half + rest)
    expected, before = apply_rope(x, rows), x.clone()
    for name in isas:
        library.use_isa(name)
        assert torch.equal(apply_rope(x, rows, back_end="native"), expected)
        assert torch.equal(x, before)


def test_soft_cap_is_close_and_keeps_nan(isas: list[str]) -> None:
    x = torch.cat((torch.linspace(-200, 200, 1001), torch.tensor([math.inf, -math.inf, math.nan, 0.0])))
    expected = reference_cap.softcap_(x.double(), 30.0)
    for name in isas:
        library.use_isa(name)
        found = softcap(x.clone(), 30.0, back_end="native")
        torch.testing.assert_close(found.double(), expected, rtol=0, atol=1e-5, equal_nan=True)
        assert (found[:-2].abs() <= 30.0).all()
    with pytest.raises(ValueError, match="contiguous"):
        softcap(torch.zeros(4, 4).T[:2], 30.0, back_end="native")


def argmax(row: torch.Tensor) -> int:
    out = ctypes.c_int32(-7)
    pointer = ctypes.c_void_p(row.data_ptr())
    library.library().edgewise_argmax(pointer, ctypes.c_int64(1), ctypes.c_int32(row.numel()), ctypes.byref(out))
    return out.value


@given(count=st.integers(1, 1200), seed=st.integers(0, 99), levels=st.integers(1, 50))
@quick
def test_argmax_is_the_first_of_the_largest(isas: list[str], count: int, seed: int, levels: int) -> None:
    row = torch.randint(-levels, levels, (count,), generator=torch.Generator().manual_seed(seed)).float()
    expected = row.tolist().index(float(row.max()))
    for name in isas:
        library.use_isa(name)
        assert argmax(row) == expected


@pytest.mark.parametrize("count", [1, 16, 33, 600])
def test_argmax_refuses_what_is_not_finite(isas: list[str], count: int) -> None:
    for name in isas:
        library.use_isa(name)
        for at in {0, count // 2, count - 1}:
            for poison, refused in ((math.nan, True), (math.inf, True), (-math.inf, count == 1)):
                row = torch.zeros(count)
                row[at] = poison
                assert (argmax(row) == -1) == refused, (name, at, poison)
        assert argmax(torch.full((count,), -math.inf)) == -1
