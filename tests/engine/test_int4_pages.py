"""Pages rounded to 4 bits: how far they are from the stored ones, and how many bytes they take."""

import math

import pytest
import torch

from edgewise.engine.tiers.int4 import Int4Pages
from edgewise.engine.tiers.mover import KVPageMover
from edgewise.kernels.kv_write import write_kv
from edgewise.kernels.paging import PAGE_TOKENS, SCALED_FORMATS, KVLayer

PAGES = 3
TYPES = [torch.float32, torch.bfloat16, torch.float16, torch.int8, torch.float8_e4m3fn]


def layer(dtype: torch.dtype, heads: int, channels: int) -> KVLayer:
    """Of random numbers; one channel of the keys is twenty times as large as the others."""
    shape = (PAGES, heads, PAGE_TOKENS, channels)
    k, v = (torch.zeros(shape, dtype=dtype) for _ in range(2))
    scaled = dtype in SCALED_FORMATS
    k_scale, v_scale = (torch.zeros(shape[:3]) if scaled else None for _ in range(2))
    kv = KVLayer(k, v, k_scale, v_scale)
    generator = torch.Generator().manual_seed(3)
    keys, values = (torch.randn((PAGES * PAGE_TOKENS, heads, channels), generator=generator) for _ in range(2))
    keys[:, :, 1] *= 20
    write_kv(kv, keys, values, torch.arange(PAGES * PAGE_TOKENS))
    return kv


@pytest.mark.parametrize("dtype", TYPES)
def test_a_page_comes_back_near_to_what_it_was_and_on_the_same_grid(dtype: torch.dtype) -> None:
    kv = [
        layer(dtype, 2, 64),
        layer(torch.bfloat16, 1, 24),
    ]  # layers may differ, and a head need not be a multiple of a run
    mover, rounder = KVPageMover(kv), Int4Pages(kv)
    stored = mover.export(range(PAGES))
    packed = rounder.pack(stored)
    numbers = 2 * PAGE_TOKENS * 64, PAGE_TOKENS * 24
    groups = sum(numbers) / PAGE_TOKENS + numbers[0] / 32 + numbers[1] / 24
    assert [len(page) for page in packed] == [rounder.page_bytes] * PAGES
    assert rounder.page_bytes == sum(numbers) + 4 * groups  # keys and values of half a byte
    came = rounder.unpack(packed)
    assert [len(page) for page in came] == [mover.page_bytes] * PAGES
    assert 0 < max(rounder.distance(*both) for both in zip(came, stored, strict=True)) < 0.15
    assert rounder.distance(stored[0], stored[1]) > 1
    mover.restore(range(PAGES), [memoryview(page) for page in came])
    assert mover.export([1])[0] == came[1]
    again = rounder.unpack(rounder.pack([memoryview(page) for page in came]))
    assert rounder.distance(again[0], came[0]) < 0.05


def test_what_is_constant_is_exact_and_what_is_no_number_stays_so() -> None:
    kv = layer(torch.float32, 1, 32)
    kv.k.fill_(0.5)
    kv.v.zero_()
    mover, rounder = KVPageMover([kv]), Int4Pages([kv])
    (page,) = mover.export([0])
    (came,) = rounder.unpack(rounder.pack([page]))
    assert came == page
    kv.v[0, 0, 3, 5] = math.nan
    (page,) = mover.export([0])
    (came,) = rounder.unpack(rounder.pack([page]))
    assert math.isnan(rounder.distance(page, memoryview(came)))


def test_nothing_is_nothing_and_a_page_of_another_size_is_refused() -> None:
    rounder = Int4Pages([layer(torch.float32, 1, 32)])
    assert rounder.pack([]) == rounder.unpack([]) == []
    with pytest.raises(ValueError, match="bytes"):
        rounder.unpack([bytes(rounder.page_bytes - 1)])
