"""Weights in 8 and 4 bits for a card; `unpack` under Triton's interpreter."""

from __future__ import annotations

import pytest
import torch

from tests.kernels.interpreter import interpreted

weights = interpreted("weights")


def matrix(rows: int = 5, columns: int = 96) -> torch.Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(("to", "steps"), [("int8", 254), ("int4", 15)])
def test_errors_are_half_a_step(to: str, steps: int) -> None:
    x = matrix()
    x[2, 32:64] = 0.0
    weight = weights.quantize(x, to)
    back = weights.unpack(weight, torch.full_like(x, torch.nan))
    groups = x.view(5, -1, 32)
    span = 2 * groups.abs().amax(-1) if to == "int8" else groups.amax(-1) - groups.amin(-1)
    error = (back - x).view(5, -1, 32).abs().amax(-1)
    assert (error <= span / steps / 2 * 1.02 + 2e-3 * groups.abs().amax(-1)).all()
    assert torch.equal(back[2, 32:64], torch.zeros(32))


def test_fp8_keeps_the_largest_of_a_row() -> None:
    x = matrix()
    weight = weights.quantize(x, "fp8", bias := torch.ones(5))
    back = weights.unpack(weight, torch.full_like(x, torch.nan))
    assert weight.bias is bias
    torch.testing.assert_close(back, x, rtol=1 / 16, atol=float(x.abs().max()) * 2**-9)
    torch.testing.assert_close(back.abs().amax(1), x.abs().amax(1))


def test_slabs_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = weights.quantize(matrix(), "int4")
    monkeypatch.setattr(weights, "_SLAB", 200)
    parts = weights.quantize(matrix(), "int4")
    assert torch.equal(whole.codes, parts.codes)
    assert torch.equal(whole.minimum, parts.minimum)


@pytest.mark.parametrize("to", ["int8", "int4", "fp8"])
@pytest.mark.parametrize("poison", [torch.nan, torch.inf])
def test_what_is_not_finite_is_refused(to: str, poison: float) -> None:
    x = matrix()
    x[3, 40] = poison
    with pytest.raises(ValueError, match="holds NaN"):
        weights.quantize(x, to)


def halves(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).half()


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0"])
def test_blocks_are_taken_without_loss(kind: str) -> None:
    """Blocks by the layout that GGUF's documentation gives them."""
    scale, minimum = halves(3, 2, 1, seed=1), halves(3, 2, 1, seed=2)
    codes = torch.randint(0, 256, (3, 2, 32 if kind == "Q8_0" else 16), dtype=torch.uint8)
    heads = [scale.view(torch.uint8)] + ([minimum.view(torch.uint8)] if kind == "Q4_1" else [])
    raw = torch.cat((*heads, codes), dim=2).view(3, -1)
    if kind == "Q8_0":
        expected = codes.view(torch.int8).double() * scale.double()
    else:
        numbers = torch.cat((codes & 15, codes >> 4), dim=2).double()
        expected = numbers * scale.double() + minimum.double() if kind == "Q4_1" else (numbers - 8) * scale.double()
    back = weights.unpack(weights.from_blocks(raw, kind), torch.full((3, 64), torch.nan))
    torch.testing.assert_close(back.double(), expected.view(3, 64), rtol=0, atol=1e-5)


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(ValueError, match="not to int3"):
        weights.quantize(matrix(), "int3")
    with pytest.raises(ValueError, match="a multiple of 32"):
        weights.quantize(matrix(2, 40), "int8")
    with pytest.raises(ValueError, match="Q6_K are not taken"):
        weights.from_blocks(torch.zeros(2, 20, dtype=torch.uint8), "Q6_K")
    with pytest.raises(ValueError, match="a multiple of 20"):
        weights.from_blocks(torch.zeros(2, 30, dtype=torch.uint8), "Q4_1")
    with pytest.raises(ValueError, match="nothing to unpack"):
        weights.unpack(weights.Weight(matrix()), matrix())
    with pytest.raises(ValueError, match="out must be"):
        weights.unpack(weights.quantize(matrix(), "int8"), matrix(2))
