from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from edgewise.kernels.kv_write import kv_rows, write_kv
from edgewise.kernels.paging import KVLayer
from edgewise.kernels.reference.kv_write import quantize
from tests.kernels.as_on_a_card import MultipliesWithInverses

Paged = Callable[..., Any]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_writes_each_token_to_its_slot_and_nothing_else(paged_sequences: Paged, dtype: torch.dtype) -> None:
    sequences = paged_sequences(3, 8, dtype, num_pages=12)
    sequences.add(40)
    for which, source in (("k", sequences.keys[0]), ("v", sequences.values[0])):
        pages = getattr(sequences.layer, which)
        found = pages[torch.tensor(sequences.pages[0])].transpose(1, 2).flatten(0, 1)
        assert torch.equal(found[:40], source.to(dtype))
        assert pages.isnan().sum() == pages.numel() - 40 * 3 * 8


def test_takes_strided_input_and_given_rows() -> None:
    layer = KVLayer(torch.zeros(2, 2, 16, 4), torch.zeros(2, 2, 16, 4))
    fused = torch.arange(3 * 5 * 4.0).view(3, 5, 4)
    slots = torch.tensor([31, 0, 17])
    write_kv(layer, fused[:, 1:3], fused[:, 3:], slots, rows=kv_rows(slots, 2))
    assert torch.equal(layer.k[1, :, 15], fused[0, 1:3])
    assert torch.equal(layer.k[0, :, 0], fused[1, 1:3])
    assert torch.equal(layer.v[1, :, 1], fused[2, 3:])
    assert layer.k.count_nonzero() == 24


def scaled_layer(dtype: torch.dtype) -> KVLayer:
    pages = [torch.zeros(1, 1, 16, 4, dtype=dtype) for _ in range(2)]
    return KVLayer(*pages, *(torch.zeros(1, 1, 16) for _ in range(2)))


def int8_layer() -> KVLayer:
    return scaled_layer(torch.int8)


def test_int8_rounds_half_to_even_and_keeps_a_scale_per_token_and_head() -> None:
    layer = int8_layer()
    k = torch.tensor([[[127.0, 0.5, 1.5, -2.5]], [[0.0, 0.0, 0.0, 0.0]], [[-254.0, 2.0, 1.0, 0.0]]])
    write_kv(layer, k, -k, torch.tensor([0, 1, 2]))
    assert layer.k[0, 0, :3].tolist() == [[127, 0, 2, -2], [0, 0, 0, 0], [-127, 1, 0, 0]]
    assert layer.v[0, 0, :3].tolist() == [[-127, 0, -2, 2], [0, 0, 0, 0], [127, -1, 0, 0]]
    assert layer.k_scale is not None
    assert layer.k_scale[0, 0, :3].tolist() == [1.0, 0.0, 2.0]


def test_int8_error_is_at_most_half_a_step() -> None:
    layer = int8_layer()
    k = torch.randn(16, 1, 4, generator=torch.Generator().manual_seed(0))
    write_kv(layer, k, k, torch.arange(16))
    assert layer.k_scale is not None
    restored = layer.k[0, 0].float() * layer.k_scale[0, 0, :, None]
    step = k[:, 0].abs().amax(-1, keepdim=True) / 127
    assert ((restored - k[:, 0]).abs() <= step / 2 * (1 + 1e-5)).all()


def test_fp8_rounds_half_to_even_and_reaches_448() -> None:
    layer = scaled_layer(torch.float8_e4m3fn)
    # Between 256 and 448 the numbers are 32 apart: 304 and 272 lie half-way, the even mantissa wins.
    k = torch.tensor([[[448.0, 304.0, 272.0, -300.0]], [[0.0, 0.0, 0.0, 0.0]], [[-896.0, 2.0, 0.0, 448.0]]])
    write_kv(layer, k, -k, torch.tensor([0, 1, 2]))
    assert layer.k[0, 0, :3].float().tolist() == [[448, 320, 256, -288], [0, 0, 0, 0], [-448, 1, 0, 224]]
    assert torch.equal(layer.v.float(), -layer.k.float())
    assert layer.k_scale is not None
    assert layer.k_scale[0, 0, :3].tolist() == [1.0, 0.0, 2.0]


def test_fp8_error_is_at_most_a_sixteenth_of_the_number_or_half_the_smallest_step() -> None:
    layer = scaled_layer(torch.float8_e4m3fn)
    k = torch.randn(16, 1, 4, generator=torch.Generator().manual_seed(0)) * torch.logspace(-8, 8, 16).view(16, 1, 1)
    write_kv(layer, k, k, torch.arange(16))
    assert layer.k_scale is not None
    scale = layer.k_scale[0, 0, :, None]
    error = (layer.k[0, 0].float() * scale - k[:, 0]).abs()
    assert (error <= torch.maximum(k[:, 0].abs() / 16, scale * 2**-10) * (1 + 1e-5)).all()


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn])
@pytest.mark.parametrize("poison", [torch.nan, torch.inf, -torch.inf])
def test_rows_that_are_not_finite_are_shown(poison: float, dtype: torch.dtype) -> None:
    layer = scaled_layer(dtype)
    k = torch.ones(2, 1, 4)
    k[0, 0, 2] = poison
    write_kv(layer, k, torch.ones(2, 1, 4), torch.tensor([4, 5]))
    assert layer.k_scale is not None
    assert layer.v_scale is not None
    assert layer.k_scale[0, 0, 4].isnan()
    assert layer.k.float().isfinite().all()
    assert layer.k_scale[0, 0, 5] > 0
    assert layer.v_scale[0, 0, 4] > 0


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn])
def test_a_card_that_multiplies_with_inverses_stores_the_same(dtype: torch.dtype) -> None:
    """Numbers of 8 bits have many quotients that lie half-way between two codes."""
    x = torch.randn(64, 64, generator=torch.Generator().manual_seed(2)).bfloat16().float()
    values, scales = quantize(x, dtype)
    with MultipliesWithInverses():
        assert not torch.equal(scales / 3.0, scales / torch.full_like(scales, 3.0))
        again, scales_again = quantize(x, dtype)
    assert torch.equal(scales_again, scales)
    assert torch.equal(again.float(), values.float())


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn])
def test_the_smallest_numbers_are_taken(dtype: torch.dtype) -> None:
    layer = scaled_layer(dtype)
    k = torch.full((1, 1, 4), 1e-44)
    write_kv(layer, k, k, torch.tensor([0]))
    assert layer.k_scale is not None
    assert layer.k_scale.isfinite().all()
    assert layer.k.float().isfinite().all()


def test_wrong_arguments_are_named() -> None:
    layer = KVLayer(torch.zeros(2, 2, 16, 4), torch.zeros(2, 2, 16, 4))
    good, slots = torch.zeros(3, 2, 4), torch.zeros(3, dtype=torch.int64)
    with pytest.raises(ValueError, match=r"k and v must be \[T, 2, 4\]"):
        write_kv(layer, torch.zeros(3, 1, 4), torch.zeros(3, 1, 4), slots)
    with pytest.raises(ValueError, match="k and v"):
        write_kv(layer, good, torch.zeros(2, 2, 4), slots)
    with pytest.raises(ValueError, match="slots"):
        write_kv(layer, good, good, slots[:2])
    with pytest.raises(ValueError, match="slots"):
        write_kv(layer, good, good, slots.int())
    with pytest.raises(ValueError, match="k_scale"):
        write_kv(KVLayer(layer.k.to(torch.int8), layer.v.to(torch.int8)), good, good, slots)
