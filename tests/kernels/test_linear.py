from __future__ import annotations

import pytest
import torch

from edgewise.kernels import linear as kernels_linear
from edgewise.kernels.limits import max_row_multiple
from edgewise.kernels.linear import linear, measure, tiles_invariant
from edgewise.kernels.rows import Rows, candidates, default_rows

CPU = torch.device("cpu")
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bias", [True, False])
def test_matches_float64(dtype: torch.dtype, bias: bool) -> None:
    x, weight, add = random(5, 96).to(dtype), random(33, 96, seed=1).to(dtype), random(33, seed=2).to(dtype)
    expected = x.double() @ weight.double().T + (add.double() if bias else 0)
    out = linear(x, weight, add if bias else None)
    assert out.dtype is dtype
    tolerance = {torch.float32: 1e-4, torch.bfloat16: 0.2, torch.float16: 0.03}[dtype]
    torch.testing.assert_close(out.double(), expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("n", "k"), [(64, 64), (257, 80), (320, 576), (96, 2048)])
def test_a_row_does_not_depend_on_its_neighbours(dtype: torch.dtype, n: int, k: int) -> None:
    x, weight, bias = random(128, k).to(dtype), random(n, k, seed=1).to(dtype), random(n, seed=2).to(dtype)
    rows = measure([weight])
    assert rows.proven
    whole = linear(x, weight, bias, rows)
    for count in (1, 2, 3, 5, 7, 8, 9, 16, 31, 64, 100):
        assert torch.equal(linear(x[:count], weight, bias, rows), whole[:count]), count
        assert torch.equal(linear(x[-count:], weight, bias, rows), whole[-count:]), count


@pytest.mark.parametrize("dtype", DTYPES)
def test_tiles_of_one_shape_agree_with_the_whole(dtype: torch.dtype) -> None:
    x, weight, bias = random(40, 96).to(dtype), random(33, 96, seed=1).to(dtype), random(33, seed=2).to(dtype)
    tiled = linear(x, weight, bias, Rows(16, tile=16))
    assert tiled.shape == (40, 33)
    torch.testing.assert_close(tiled, linear(x, weight, bias), rtol=2e-2, atol=2e-2)
    assert torch.equal(linear(x[:3], weight, bias, Rows(16, tile=16)), tiled[:3])


def shaky_above(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A library whose products change in their last bits when more than `limit` rows are computed at once."""

    def shaky(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, rows: Rows) -> torch.Tensor:
        at_once = rows.tile or rows.padded(x.shape[0])
        return ((x.double() @ weight.double().T) * (1 + 1e-6 * (at_once > limit))).float()

    monkeypatch.setattr("edgewise.kernels.reference.linear.linear", shaky)


def test_a_library_that_varies_is_pinned_to_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    shaky_above(16, monkeypatch)
    assert measure([random(64, 64)]) == Rows(16, tile=16, proven=True)


def test_a_library_that_cannot_be_pinned_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    counter = iter(range(10_000))
    monkeypatch.setattr(
        "edgewise.kernels.reference.linear.linear",
        lambda x, weight, bias, rows: x @ weight.T + next(counter),
    )
    assert measure([random(64, 64)]) == default_rows(torch.float32)
    assert not default_rows(torch.float32).proven


def test_attention_tiles_are_measured_too() -> None:
    assert tiles_invariant(CPU)


@pytest.mark.parametrize("name", ["tile_product", "row_sum", "rms_norm"])
def test_tiles_that_depend_on_the_batch_are_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    steady = getattr(kernels_linear, name)

    def shaky(x: torch.Tensor, *arguments: object) -> torch.Tensor:
        """Other last bits for more than 16 rows."""
        result: torch.Tensor = steady(x, *arguments) * (1 + 1e-6 * (x.numel() // x.shape[-1] > 16))
        return result

    monkeypatch.setattr(kernels_linear, name, shaky)
    assert not tiles_invariant(CPU)


def test_a_gpu_is_offered_larger_multiples_and_no_tiles() -> None:
    assert candidates(torch.bfloat16, "cuda") == [Rows(2), Rows(16), Rows(64), Rows(128)]
    assert candidates(torch.float32, "cpu") == [Rows(8), Rows(16), Rows(16, tile=16)]
    assert max(rows.padded(1) for rows in candidates(torch.float32, "cuda")) == max_row_multiple("cuda")


def test_padded_rows() -> None:
    assert [default_rows(torch.float32).padded(count) for count in (1, 8, 9)] == [8, 8, 16]
    assert [default_rows(torch.bfloat16).padded(count) for count in (1, 2, 3, 17, 64, 65)] == [2, 2, 4, 24, 64, 96]


def test_wrong_arguments_are_named() -> None:
    x, weight = torch.zeros(2, 4), torch.zeros(3, 4)
    with pytest.raises(ValueError, match="weight"):
        linear(x, torch.zeros(3, 5))
    with pytest.raises(ValueError, match="x must be"):
        linear(torch.zeros(4), weight)
    with pytest.raises(ValueError, match="must share"):
        linear(x, weight.bfloat16())
    with pytest.raises(ValueError, match="must share"):
        linear(x.double(), weight.double())
    with pytest.raises(ValueError, match=r"bias must be \[3\]"):
        linear(x, weight, torch.zeros(4))
