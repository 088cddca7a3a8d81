from __future__ import annotations

import ctypes

import gguf
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from edgewise.kernels.native.formats import GROUP, WeightFormat, bits_of, packed_bytes
from edgewise.kernels.native.library import isa, library
from edgewise.kernels.native.packed import PackedMatrix, alternate, can_pack_blocks, pack
from edgewise.kernels.reference.quantized_linear import rotate, unpack_codes
from edgewise.models.weights.rounding import round_int4
from tests.kernels.native.using import using
from tests.kernels.native.weights import LAYOUTS, fitting, packed, random, random_blocks, values_of

ALL_INTEGERS = [it for it in WeightFormat if not it.is_float]
ROUNDED = [it for it in WeightFormat if it.takes_floats]
INTEGERS = [it for it in ROUNDED if not it.is_float]
sizes = st.tuples(st.integers(1, 70), st.integers(1, 130))


def from_codes(matrix: PackedMatrix) -> torch.Tensor:
    """What the layout says in PyTorch, without the library."""
    codes, scales, minima = unpack_codes(matrix)
    steps = scales.repeat_interleave(GROUP // scales.shape[2], 2)
    values = (codes * steps + minima[..., None]).flatten(1)
    return (rotate(values) / 8 if matrix.format == WeightFormat.INT8_ROTATED else values)[:, : matrix.cols]


@given(sizes, st.sampled_from(WeightFormat))
def test_sizes_are_those_of_the_library(size: tuple[int, int], weight_format: WeightFormat) -> None:
    count = library().edgewise_packed_bytes
    count.argtypes, count.restype = [ctypes.c_int64, ctypes.c_int64, ctypes.c_int32], ctypes.c_int64
    rows, cols = size[0], fitting(size[1], weight_format)
    assert packed_bytes(rows, cols, weight_format) == count(rows, cols, weight_format)


@given(sizes, st.sampled_from(ALL_INTEGERS))
def test_the_layout_is_what_the_reference_reads(size: tuple[int, int], weight_format: WeightFormat) -> None:
    matrix = packed(*size, weight_format)
    assert torch.equal(matrix.unpack(), from_codes(matrix))


def test_bits_of_a_weight() -> None:
    assert [(it.name, bits_of(it)) for it in WeightFormat] == [
        ("FLOAT32", 32.0),
        ("BFLOAT16", 16.0),
        ("INT8", 8.5),
        ("INT4", 5.0),
        ("INT4_EVEN", 4.5),
        ("INT8_ROTATED", 8.5),
        ("INT8_MIN", 9.0),
        ("INT4_K", 4.625),
        ("INT8_K", 8.625),
        ("INT8_K16", 8.5625),
    ]


@given(sizes, st.sampled_from(INTEGERS))
def test_integers_are_the_nearest_codes_of_their_groups(size: tuple[int, int], weight_format: WeightFormat) -> None:
    weight = random(*size)
    matrix = pack(weight, weight_format)
    found = matrix.unpack()
    assert torch.equal(found, from_codes(matrix))
    step = unpack_codes(matrix)[1][..., 0].abs().repeat_interleave(GROUP, 1)[:, : size[1]]
    # half a step, and what float16 took from the scale, which counts at the ends; rotated, what 32 times half a step may add
    # up to; in 4 bits the ends of a range may be cut off for the sake of the others
    most = {
        WeightFormat.INT8: 0.5,
        WeightFormat.INT8_ROTATED: 2.0,
        WeightFormat.INT4: 3.0,
        WeightFormat.INT4_EVEN: 1.01,
    }
    assert ((found - weight).abs() <= step * most[weight_format] + 0.002 * weight.abs().max()).all()


@pytest.mark.parametrize("weight_format", INTEGERS[:1] + INTEGERS[-1:])
def test_eight_bits_come_near(weight_format: WeightFormat) -> None:
    weight = random(40, 576)
    assert float((pack(weight, weight_format).unpack() - weight).norm() / weight.norm()) < 0.007
    spiky = torch.where(torch.arange(576) % 32 == 5, 30.0, 1.0) * weight
    rounded = pack(spiky, weight_format).unpack() - spiky
    calm = float(rounded[:, torch.arange(576) % 32 != 5].norm() / weight.norm())
    assert calm < 0.2


@given(st.integers(0, 2**20), st.sampled_from([0.0, 1.0]))
def test_four_bits_are_nearer_than_ggml_comes(seed: int, spread: float) -> None:
    columns = torch.exp(random(1, 128, seed=seed) * spread)
    weight = random(8, 128, seed=seed + 1) * columns
    kind = gguf.GGMLQuantizationType.Q4_1
    theirs = torch.from_numpy(gguf.dequantize(gguf.quantize(weight.numpy(), kind), kind))
    ours = pack(weight, WeightFormat.INT4).unpack()
    error = [float((it - weight).square().sum()) for it in (ours, theirs)]
    assert error[0] < error[1]
    searched = float((round_int4(weight).values() - weight).square().sum())
    assert error[0] == pytest.approx(searched, rel=0.01)  # the same search in PyTorch, by which formats are judged


@given(sizes)
def test_floats_are_kept(size: tuple[int, int]) -> None:
    weight = random(*size)
    assert torch.equal(pack(weight, WeightFormat.FLOAT32).unpack(), weight)
    assert torch.equal(pack(weight, WeightFormat.BFLOAT16).unpack(), weight.bfloat16().float())


@pytest.mark.parametrize("weight_format", ROUNDED)
def test_threads_pack_what_one_packs(weight_format: WeightFormat) -> None:
    weight = random(53, 70)
    alone = pack(weight, weight_format).data
    for threads in (2, 5, 60):
        with using(isa(), threads):
            assert torch.equal(pack(weight, weight_format).data, alone)


@given(sizes, st.sampled_from(ROUNDED), st.integers(1, 20))
def test_rows_may_come_in_any_parts(size: tuple[int, int], weight_format: WeightFormat, part: int) -> None:
    weight = random(*size)
    matrix = PackedMatrix.zeros(*size, weight_format)
    for first in reversed(range(0, size[0], part)):
        matrix.pack_rows(weight[first : first + part], first)
    assert torch.equal(matrix.data, pack(weight, weight_format).data)


@pytest.mark.parametrize(
    ("kind", "weight_format"),
    [
        ("Q4_0", WeightFormat.INT4_EVEN),
        ("Q4_0", WeightFormat.INT4),
        ("Q4_0", WeightFormat.INT8),
        ("Q4_1", WeightFormat.INT4),
        ("Q8_0", WeightFormat.INT8),
    ],
)
def test_gguf_blocks_keep_every_bit(kind: str, weight_format: WeightFormat) -> None:
    block = gguf.GGMLQuantizationType[kind]
    weight = random(37, 96)
    weight[3, 32:64] = 0.0
    weight[4, 0] = 1e-7  # a scale among float16's subnormal numbers
    raw = gguf.quants.quantize(weight.numpy(), block)
    matrix = PackedMatrix.zeros(40, 96, weight_format)
    matrix.pack_blocks(torch.from_numpy(raw), kind, 2)
    expected = torch.from_numpy(gguf.quants.dequantize(raw, block).astype(np.float32))
    assert torch.equal(matrix.unpack(2, 37), expected)
    assert not matrix.unpack(0, 2).any()


HOLD = [(kind, it) for kind in LAYOUTS for it in WeightFormat if can_pack_blocks(kind, it)]


def test_who_holds_what() -> None:
    assert {(kind, it.name) for kind, it in HOLD} == {
        ("Q4_0", "INT8"), ("Q4_0", "INT4"), ("Q4_0", "INT4_EVEN"), ("Q4_1", "INT4"), ("Q4_1", "INT8_MIN"),
        ("Q5_0", "INT8"), ("Q5_1", "INT8_MIN"), ("Q8_0", "INT8"),
        ("Q4_K", "INT4_K"), ("Q4_K", "INT8_K"), ("Q5_K", "INT8_K"), ("Q6_K", "INT8_K16"),
    }  # fmt: skip


@pytest.mark.parametrize(("kind", "weight_format"), HOLD)
def test_any_block_of_gguf_keeps_every_bit(kind: str, weight_format: WeightFormat) -> None:
    """All codes, factors and signs of scales, by ggml's own package."""
    raw = random_blocks(kind, 37, 512, seed=3)
    matrix = PackedMatrix.zeros(40, 512, weight_format)
    matrix.pack_blocks(raw, kind, 2)
    assert torch.equal(matrix.unpack(2, 37), values_of(raw, kind))
    assert not matrix.unpack(0, 2).any()
    assert not matrix.unpack(39, 1).any()


def test_floats_are_not_rounded_to_what_holds_blocks() -> None:
    for weight_format in set(WeightFormat) - set(ROUNDED):
        with pytest.raises(ValueError, match="holds blocks of a file"):
            pack(random(16, 256), weight_format)
    with pytest.raises(ValueError, match="INT4_K takes a multiple of 256 columns, got 288"):
        PackedMatrix.zeros(16, 288, WeightFormat.INT4_K)


def test_what_a_format_cannot_hold_is_refused() -> None:
    assert not can_pack_blocks("Q6_K", WeightFormat.INT8)
    raw = torch.zeros((16, 34), dtype=torch.uint8)
    with pytest.raises(ValueError, match="without loss"):
        PackedMatrix.zeros(16, 32, WeightFormat.INT4).pack_blocks(raw, "Q8_0", 0)
    with pytest.raises(ValueError, match="do not take 34 bytes"):
        PackedMatrix.zeros(16, 64, WeightFormat.INT8).pack_blocks(raw, "Q8_0", 0)
    with pytest.raises(ValueError, match="do not fit"):
        PackedMatrix.zeros(16, 32, WeightFormat.INT8).pack_blocks(raw, "Q8_0", 1)


@pytest.mark.parametrize("weight_format", INTEGERS)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -1e8])
def test_values_without_a_code_are_refused_by_their_row(weight_format: WeightFormat, bad: float) -> None:
    weight = random(20, 40)
    weight[17, 33] = weight[19, 2] = bad
    for threads in (1, 3, 30):
        with using(isa(), threads), pytest.raises(ValueError, match="row 17 holds"):
            pack(weight, weight_format)


@pytest.mark.parametrize(
    ("kind", "at", "weight_format"), [(kind, at, it) for kind, it in HOLD for at in LAYOUTS[kind][2]]
)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_blocks_with_a_scale_or_minimum_that_is_not_finite_are_refused(
    kind: str, at: int, weight_format: WeightFormat, bad: float
) -> None:
    columns, size, _ = LAYOUTS[kind]
    raw = torch.zeros((20, 2 * size), dtype=torch.uint8)
    raw[17, size + at : size + at + 2] = torch.tensor([bad]).half().view(torch.uint8)
    with pytest.raises(ValueError, match="row 17 has a scale or minimum that is NaN, infinite"):
        PackedMatrix.zeros(20, 2 * columns, weight_format).pack_blocks(raw, kind, 0)


@pytest.mark.parametrize("weight_format", [it for it in ALL_INTEGERS if not it.has_factors])
def test_codes_chosen_elsewhere(weight_format: WeightFormat) -> None:
    low, high = (-127, 128) if weight_format.has_bytes else (0, 16)
    codes = torch.randint(low, high, (21, 64), generator=torch.Generator().manual_seed(1), dtype=torch.int8)
    scales = random(21, 2).half()
    minima = random(21, 2, seed=1).half() if weight_format.has_minimum else None
    matrix = PackedMatrix.zeros(21, 64, weight_format)
    matrix.pack_codes(codes, scales, minima)
    shift = 8 if weight_format == WeightFormat.INT4_EVEN else 0
    expected = (codes.float() - shift).view(21, 2, 32) * scales.float()[..., None]
    if minima is not None:
        expected += minima.float()[..., None]
    whole = expected.flatten(1)
    assert torch.equal(matrix.unpack(), rotate(whole) / 8 if weight_format == WeightFormat.INT8_ROTATED else whole)
    with pytest.raises(ValueError, match="codes must be int8"):
        matrix.pack_codes(codes + 128 if low else codes + 16, scales, minima)
    with pytest.raises(ValueError, match="minima belong to INT4"):
        matrix.pack_codes(codes, scales, scales if minima is None else None)


def test_gate_and_up_alternate_by_panels() -> None:
    gate, up = torch.arange(20.0)[:, None], -torch.arange(20.0)[:, None]
    both = alternate(gate, up).view(2, 2, 16)
    assert torch.equal(both[:, 0].flatten()[:20], gate[:, 0])
    assert torch.equal(both[:, 1].flatten()[:20], up[:, 0])
    assert not both[1, :, 4:].any()
    with pytest.raises(ValueError, match="one shape"):
        alternate(gate, up[:16])


def test_weights_share_mappings_and_start_on_cache_lines() -> None:
    first, second = (PackedMatrix.zeros(5, 5, WeightFormat.FLOAT32) for _ in range(2))
    assert first.data.data_ptr() % 64 == second.data.data_ptr() % 64 == 0
    first.data.fill_(255)
    assert not second.data.any()
    assert not PackedMatrix.zeros(4096, 4096, WeightFormat.FLOAT32).data[::4096].any()  # larger than a shared mapping
