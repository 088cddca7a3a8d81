"""Rounding to 8 and 4 bits: stored without loss in GGUF's blocks, no worse than the plain way, better where it counts."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from gguf.quants import dequantize, quantize
from hypothesis import given, settings
from hypothesis import strategies as st

from edgewise.models.weights import ggml_rounding
from edgewise.models.weights.rounding import BadRow, Rounded, round_int4, round_int8


def matrix(seed: int, rows: int = 24, cols: int = 128, spread: float = 1.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    columns = torch.exp(torch.randn(cols, generator=generator) * spread)
    return torch.randn(rows, cols, generator=generator) * columns


def ggml(weight: torch.Tensor, kind: Kind) -> torch.Tensor:
    return torch.from_numpy(dequantize(quantize(weight.numpy(), kind), kind))


def error(got: torch.Tensor, weight: torch.Tensor, importance: torch.Tensor | float = 1.0) -> float:
    return float(((got - weight).square() * importance).sum())


@pytest.mark.parametrize(("rounded", "kind"), [(round_int8, Kind.Q8_0), (round_int4, Kind.Q4_1)])
def test_blocks_are_those_of_gguf(rounded: object, kind: Kind) -> None:
    done = rounded(matrix(1))  # type: ignore[operator]
    raw = np.frombuffer(done.blocks(), np.uint8).reshape(24, -1)
    assert torch.equal(torch.from_numpy(dequantize(raw, kind)), done.values())


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**20), spread=st.sampled_from([0.0, 0.5, 1.5]))
def test_never_worse_than_ggml(seed: int, spread: float) -> None:
    weight = matrix(seed, spread=spread)
    assert error(round_int8(weight).values(), weight) <= error(ggml(weight, Kind.Q8_0), weight)
    assert error(round_int4(weight).values(), weight) <= error(ggml(weight, Kind.Q4_1), weight)


def test_importance_lowers_the_error_of_products() -> None:
    weight, inputs = matrix(2, cols=256), torch.randn(64, 256) * torch.exp(torch.randn(256))
    importance = inputs.square().mean(0)
    plain, weighted = round_int4(weight).values(), round_int4(weight, importance).values()
    assert error(weighted, weight, importance) < 0.8 * error(plain, weight, importance)
    assert error(inputs @ weighted.T, inputs @ weight.T) < error(inputs @ plain.T, inputs @ weight.T)


def test_what_has_four_bits_already_stays() -> None:
    weight = ggml(matrix(3), Kind.Q4_1)
    assert error(round_int4(weight).values(), weight) <= 1e-9 * float(weight.square().sum())


def test_odd_shapes_zeros_and_constants() -> None:
    for weight in (torch.zeros(3, 32), torch.full((2, 40), 0.25), matrix(4, rows=5, cols=40)):
        for done in (round_int8(weight), round_int4(weight), round_int4(weight, torch.zeros(weight.shape[1]))):
            assert done.values().shape == weight.shape
            assert error(done.values(), weight) <= 0.01 * float(weight.square().sum())
    with pytest.raises(ValueError, match="multiple of 32"):
        round_int8(torch.zeros(2, 40)).blocks()


@pytest.mark.parametrize("rounded", [round_int8, round_int4])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -1e8])
def test_what_has_no_code_is_refused_by_its_row(rounded: Callable[[torch.Tensor], Rounded], bad: float) -> None:
    weight = matrix(6)
    weight[11, 70] = weight[20, 3] = bad
    with pytest.raises(BadRow, match="row 11 holds"):
        rounded(weight)


def test_peers_round_as_ggml_does() -> None:
    weight = matrix(5)
    assert torch.equal(ggml_rounding.q8_0(weight), ggml(weight, Kind.Q8_0))
    assert torch.equal(ggml_rounding.q4_0(weight), ggml(weight, Kind.Q4_0))
