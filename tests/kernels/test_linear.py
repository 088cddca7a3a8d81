from __future__ import annotations

import pytest
import torch

from edgewise.kernels.linear import batch_invariant, linear, padded_rows

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
    whole = linear(x, weight, bias)
    for rows in (1, 2, 3, 5, 7, 8, 9, 16, 31, 64, 100):
        assert torch.equal(linear(x[:rows], weight, bias), whole[:rows]), rows
        assert torch.equal(linear(x[-rows:], weight, bias), whole[-rows:]), rows


@pytest.mark.parametrize("dtype", DTYPES)
def test_this_machine_is_found_invariant(dtype: torch.dtype) -> None:
    assert batch_invariant(dtype, CPU)


def test_a_library_that_is_not_invariant_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def shaky(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, rows: int) -> torch.Tensor:
        return x @ weight.T * (1 + 1e-6 * (rows > 8))

    monkeypatch.setattr("edgewise.kernels.reference.linear.linear", shaky)
    assert not batch_invariant(torch.float32, CPU)


def test_padded_rows() -> None:
    assert [padded_rows(rows, torch.float32) for rows in (1, 8, 9)] == [8, 8, 16]
    assert [padded_rows(rows, torch.bfloat16) for rows in (1, 2, 3)] == [2, 2, 4]


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
