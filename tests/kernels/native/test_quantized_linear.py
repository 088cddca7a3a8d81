from __future__ import annotations

import ctypes

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from edgewise.kernels.native.formats import PANEL_ROWS, WeightFormat
from edgewise.kernels.native.library import library
from edgewise.kernels.native.packed import PackedMatrix, pack
from edgewise.kernels.native.quantized_linear import EPILOGUES, BoundCall
from edgewise.kernels.quantized_linear import Epilogue, quantized_linear
from edgewise.kernels.reference.quantized_linear import round_activations
from tests.kernels.native.conftest import usable
from tests.kernels.native.using import using
from tests.kernels.native.weights import fitting, packed, packed_gate_up, random

FORMATS = list(WeightFormat)
INTEGERS = [it for it in WeightFormat if not it.is_float]
ROUNDED = [it for it in WeightFormat if it.takes_floats]
ISAS = usable()
GATED: list[Epilogue] = ["silu_mul", "gelu_mul"]


def both(x: torch.Tensor, weight: PackedMatrix, epilogue: Epilogue = "store") -> tuple[torch.Tensor, torch.Tensor]:
    bias = random(weight.rows, seed=5)
    return quantized_linear(x, weight, bias, epilogue), quantized_linear(x, weight, bias, epilogue, "reference")


@settings(deadline=None)
@given(
    st.tuples(st.integers(0, 20), st.integers(1, 70), st.integers(1, 200)),
    st.sampled_from(FORMATS),
    st.sampled_from(ISAS),
    st.integers(0, 2**31),
)
def test_agrees_with_the_reference(
    size: tuple[int, int, int], weight_format: WeightFormat, isa: str, seed: int
) -> None:
    rows, outputs, inputs = size
    x, weight = (
        random(rows, fitting(inputs, weight_format), seed=seed),
        packed(outputs, inputs, weight_format, seed + 1),
    )
    with using(isa):
        found, expected = both(x, weight)
    atol = 2e-5 if weight_format.is_float else 2e-6
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=atol * max(1.0, float(weight.unpack().abs().max())))


@pytest.mark.parametrize("weight_format", INTEGERS)
def test_integer_products_are_those_of_the_reference_bit_for_bit(weight_format: WeightFormat) -> None:
    weight = packed(100, 576, weight_format, 1)
    found, expected = both(random(9, weight.cols), weight)
    assert torch.equal(found, expected)


@pytest.mark.parametrize("weight_format", INTEGERS)
def test_all_that_is_lost_is_rounding_of_activations(weight_format: WeightFormat) -> None:
    """Against float64 over what the matrix holds: a wrong scale, minimum or half of a group would be off by far more."""
    weight = packed(96, 512, weight_format, 1)
    x = random(8, weight.cols)
    exact = x.double() @ weight.unpack().double().T
    for isa in ISAS:
        with using(isa):
            error = (quantized_linear(x, weight) - exact).norm() / exact.norm()
        assert error < 0.006


@pytest.mark.parametrize("weight_format", ROUNDED)
def test_close_to_the_float_product(weight_format: WeightFormat) -> None:
    x, weight = random(8, 576), random(96, 576, seed=1)
    exact = x.double() @ weight.double().T
    error = (quantized_linear(x, pack(weight, weight_format)) - exact).norm() / exact.norm()
    limit = {WeightFormat.FLOAT32: 1e-6, WeightFormat.BFLOAT16: 3e-3, WeightFormat.INT8: 0.01}.get(weight_format, 0.1)
    assert error < limit


@pytest.mark.parametrize("weight_format", FORMATS)
@pytest.mark.parametrize(("outputs", "inputs"), [(100, 100), (64, 576), (32, 2080)])
def test_a_row_has_the_same_bits_in_any_batch(weight_format: WeightFormat, outputs: int, inputs: int) -> None:
    weight = packed(outputs, inputs, weight_format, 1)
    x = random(33, weight.cols)
    for isa in ISAS:
        with using(isa):
            alone = torch.cat([quantized_linear(x[i : i + 1], weight) for i in range(33)])
            for count in (2, 3, 4, 5, 7, 8, 9, 16, 33):
                assert torch.equal(quantized_linear(x[:count], weight), alone[:count])
                assert torch.equal(quantized_linear(x[-count:], weight), alone[-count:])


def test_more_rows_than_a_cache_holds() -> None:
    x, weight = random(300, 2048), pack(random(48, 2048, seed=1), WeightFormat.INT8)
    whole = quantized_linear(x, weight)
    assert torch.equal(whole[150:152], quantized_linear(x[150:152], weight))
    x, weight = random(6, 60_000), pack(random(16, 60_000, seed=1), WeightFormat.FLOAT32)
    assert torch.equal(quantized_linear(x, weight)[5:], quantized_linear(x[5:], weight))


@pytest.mark.parametrize("weight_format", FORMATS)
def test_every_instruction_set_and_any_number_of_threads_give_the_same_bits(weight_format: WeightFormat) -> None:
    weight = packed_gate_up(40, 100, weight_format)
    bias, x = random(weight.rows, seed=2), random(7, weight.cols, seed=3) * 3
    for epilogue in EPILOGUES:
        results = []
        for isa in ISAS:
            for threads in (1, 2, 5):
                with using(isa, threads):
                    results.append(quantized_linear(x, weight, bias, epilogue))  # type: ignore[arg-type]
        assert all(torch.equal(each, results[0]) for each in results)


@pytest.mark.parametrize("weight_format", FORMATS)
@pytest.mark.parametrize("epilogue", GATED)
def test_gated_products(weight_format: WeightFormat, epilogue: Epilogue) -> None:
    weight = packed_gate_up(40, 96, weight_format)
    for isa in ISAS:
        with using(isa):
            found, expected = both(random(5, weight.cols, seed=2), weight, epilogue)
        assert found.shape == (5, 48)
        torch.testing.assert_close(found, expected, rtol=2e-6, atol=1e-4)


@pytest.mark.parametrize("weight_format", FORMATS)
def test_parts_of_a_product_and_addition_to_what_is_there(weight_format: WeightFormat) -> None:
    """The step splits panels over threads and adds to the residual; calls of parts must write these and no other outputs."""
    part = library().edgewise_linear_part
    pointer, integer = ctypes.c_void_p, ctypes.c_int32
    part.argtypes = [pointer, *[integer] * 3, pointer, *[integer] * 6, pointer, pointer, ctypes.c_int64]
    weight = packed(72, 72, weight_format, 1)
    x = random(6, weight.cols)
    whole = torch.empty(6, 72)
    call = BoundCall(x, weight, None, "store", whole)
    call()
    residual = random(6, 72, seed=2)
    out = residual.clone()
    matrix = (weight.data.data_ptr(), weight.rows, weight.cols, weight.format, None)
    where = (call.scratch.data_ptr(), out.data_ptr(), 72)
    part(*matrix, 6, 2, 3, 1, 2, 1, *where)  # rows 2 to 4, panels 1 and 2, added
    block = (slice(2, 5), slice(PANEL_ROWS, 3 * PANEL_ROWS))
    expected = residual.clone()
    expected[block] += whole[block]
    assert torch.equal(out, expected)
    part(*matrix, 6, 0, 6, 4, 1, 0, *where)  # the last panel, half full
    expected[:, 64:] = whole[:, 64:]
    assert torch.equal(out, expected)


@pytest.mark.parametrize("weight_format", FORMATS)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_what_is_not_finite_spoils_its_row_alone(weight_format: WeightFormat, bad: float) -> None:
    weight = packed(40, 100, weight_format, 1)
    x = random(9, weight.cols)
    clean = quantized_linear(x, weight)
    x[4, 70] = bad
    for isa in ISAS:
        with using(isa):
            found = quantized_linear(x, weight)
        assert not found[4].isfinite().any()
        if weight_format in INTEGERS:
            assert found[4].isnan().all()
        found[4] = clean[4]
        assert torch.equal(found, clean)


def test_a_zero_weight_does_not_hide_what_is_not_finite() -> None:
    for weight_format in FORMATS:
        x = torch.full((1, fitting(32, weight_format)), float("nan"))
        assert quantized_linear(x, PackedMatrix.zeros(16, x.shape[1], weight_format)).isnan().all()
        gated = PackedMatrix.zeros(32, x.shape[1], weight_format)
        assert all(quantized_linear(x, gated, None, epilogue).isnan().all() for epilogue in GATED)


@pytest.mark.parametrize("size", [0.0, 1e-45, 1e-37, 2e-36, 1e-20, 1e20, 3e38])
def test_tiny_and_huge_activations(size: float) -> None:
    x, weight = random(3, 64).clamp(-1, 1) * size, pack(random(16, 64, seed=1) * 1e-3, WeightFormat.INT8)
    found, expected = quantized_linear(x, weight), quantized_linear(x, weight, back_end="reference")
    assert torch.equal(found, expected)
    assert found.isfinite().all()
    codes, scales = round_activations(x)
    error = (codes * scales[..., None]).flatten(1) - x
    assert (error.abs() <= scales.repeat_interleave(32, 1) * 0.501 + 2.0**-119).all()


@pytest.mark.parametrize(
    "weight_format", [WeightFormat.INT8, WeightFormat.INT4, WeightFormat.INT4_EVEN, WeightFormat.INT8_K16]
)
def test_large_groups_are_rounded_twice(weight_format: WeightFormat) -> None:
    """So a row's error is that of its small groups, not of the one that is a hundred times as large."""
    x, weight = random(4, 256), packed(48, 256, weight_format, 1)
    x[:, 64:96] *= 100
    small = x.clone()
    small[:, 64:96] = 0
    exact = weight.unpack().double().T
    for isa in ISAS:
        with using(isa):
            error = (quantized_linear(x, weight).double() - x.double() @ exact).square().mean()
            least = (quantized_linear(small, weight).double() - small.double() @ exact).square().mean()
        assert error < 4 * least


def test_arguments_are_checked() -> None:
    weight = pack(random(20, 40), WeightFormat.INT8)
    with pytest.raises(ValueError, match=r"x must be float32 \[rows, 40\]"):
        quantized_linear(random(2, 41), weight)
    with pytest.raises(ValueError, match="x must be float32"):
        quantized_linear(random(2, 40).double(), weight)
    with pytest.raises(ValueError, match=r"bias must be float32 \[20\]"):
        quantized_linear(random(2, 40), weight, random(21))
    with pytest.raises(ValueError, match="multiple of 32 rows"):
        quantized_linear(random(2, 40), weight, None, "silu_mul")
