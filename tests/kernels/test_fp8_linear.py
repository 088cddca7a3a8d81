"""Products in fp8: what the reference's numbers are, against a table of all numbers of e4m3 and float64; the kernels under
Triton's interpreter against the reference."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from edgewise.kernels import fp8_linear as module
from edgewise.kernels.fp8_linear import OWN_TILES, Fp8Weight, fp8_linear, measure, round_rows
from edgewise.kernels.rows import Rows
from tests.kernels.as_on_a_card import MultipliesWithInverses
from tests.kernels.interpreter import interpreted

kernels = interpreted("fp8_product")
pytestmark = pytest.mark.filterwarnings("ignore:(overflow|invalid value):RuntimeWarning")  # numpy's, which interprets

LIMIT = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}


def numbers() -> torch.Tensor:
    """Codes 0 to 126 of e4m3 by its definition: 4 bits of exponent with a bias of 7, 3 of mantissa, no infinity."""
    code = torch.arange(127)
    exponent, mantissa = code >> 3, (code & 7).double() / 8
    return torch.where(exponent == 0, mantissa * 2.0**-6, (1 + mantissa) * 2.0 ** (exponent.double() - 7))


NUMBERS = numbers()


def random(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def uneven(rows: int, columns: int, seed: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Values of very different sizes in a row, and rows of very different sizes."""
    heat = random(rows, columns, seed=seed + 1) * 3
    return (random(rows, columns, seed=seed) * heat.exp() * (random(rows, 1, seed=seed + 2) * 4).exp()).to(dtype)


def weight(out: int, columns: int, seed: int, bias: torch.dtype | None = None) -> Fp8Weight:
    codes, scale = round_rows(uneven(out, columns, seed))
    return Fp8Weight(codes, scale, None if bias is None else random(out, seed=seed + 5, dtype=bias))


def exact(x: torch.Tensor, w: Fp8Weight) -> torch.Tensor:
    """In float64, from rounded rows; sums of thousands of products are exact there."""
    codes, step = round_rows(x)
    product = (codes.double() * step.double()[:, None]) @ (w.codes.double() * w.scale.double()[:, None]).T
    return product + (0 if w.bias is None else w.bias.double())


@pytest.fixture
def poisoned() -> Iterator[None]:
    """`torch.empty` gives NaN."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@settings(max_examples=30, deadline=None)
@given(rows=st.integers(1, 6), columns=st.integers(1, 70), seed=st.integers(0, 1000))
def test_a_code_is_the_nearest_number(rows: int, columns: int, seed: int) -> None:
    x = uneven(rows, columns, seed)
    codes, scale = round_rows(x)
    assert torch.equal(scale, x.abs().amax(1) / 448.0)
    wanted = x.abs() * (torch.full((rows, 1), 448.0) / x.abs().amax(1, keepdim=True))
    apart = (wanted.double()[..., None] - NUMBERS).abs()
    found = codes.double()
    assert torch.equal((wanted.double() - found.abs()).abs(), apart.amin(-1))
    tied = (apart == apart.amin(-1, keepdim=True)).sum(-1) > 1
    assert ((codes.view(torch.uint8) & 1) == 0)[tied].all()
    assert ((found == 0) | (found.sign() == x.sign())).all()
    assert torch.equal(found.abs().amax(1), torch.full((rows,), 448.0, dtype=torch.float64))


def test_rows_without_a_usable_scale() -> None:
    x = torch.stack([torch.zeros(8), torch.full((8,), 2.0**-120), torch.full((8,), 2.0**-119), torch.full((8,), 3e38)])
    codes, scale = round_rows(x)
    assert codes[:2].float().abs().sum() == 0
    assert scale[:2].tolist() == [0.0, 0.0]
    assert (codes[2:].float() == 448.0).all()
    assert (scale[2:] > 0).all()
    assert scale.isfinite().all()


@settings(max_examples=20, deadline=None)
@given(
    rows=st.integers(1, 9),
    columns=st.integers(1, 300),
    out=st.integers(1, 20),
    dtype=st.sampled_from(list(LIMIT)),
    bias=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_the_reference_is_exact_but_for_the_last_rounding(
    rows: int, columns: int, out: int, dtype: torch.dtype, bias: bool, seed: int
) -> None:
    x = random(rows, columns, seed=seed, dtype=dtype)
    w = weight(out, columns, seed + 1, dtype if bias else None)
    w = replace(w, scale=w.scale / w.scale.max() / 448)  # results that float16 holds
    found = fp8_linear(x, w)
    assert found.dtype == dtype
    torch.testing.assert_close(found.double(), exact(x, w), rtol=torch.finfo(dtype).eps * 0.51, atol=1e-7)
    order = torch.randperm(columns, generator=torch.Generator().manual_seed(seed))
    assert torch.equal(
        found, fp8_linear(x[:, order], replace(w, codes=w.codes.view(torch.uint8)[:, order].view(w.codes.dtype)))
    )
    assert torch.equal(found[-1:], fp8_linear(x[-1:], w))


@pytest.mark.parametrize("back_end", ["reference", "triton"])
@pytest.mark.parametrize("poison", [torch.nan, torch.inf])
def test_what_is_not_finite_stays_in_its_row(back_end: module.Fp8BackEnd, poison: float) -> None:
    x = random(4, 40, dtype=torch.bfloat16)
    x[2, 7] = poison
    found = fp8_linear(x, weight(12, 40, 3, torch.bfloat16), back_end)
    assert found[2].isnan().all()
    assert found[[0, 1, 3]].isfinite().all()


@settings(max_examples=15, deadline=None)
@given(
    rows=st.integers(1, 5),
    columns=st.integers(1, 5000),
    dtype=st.sampled_from(list(LIMIT)),
    seed=st.integers(0, 1000),
)
def test_the_kernel_rounds_to_the_same_bits(rows: int, columns: int, dtype: torch.dtype, seed: int) -> None:
    """Ties included, of which random numbers of 8 bits have many."""
    x = uneven(rows, columns, seed).clamp(-6e4, 6e4).to(dtype)
    if seed % 3 == 0:
        unit = 2.0**-3 if seed % 2 else 2.0**-10
        x = (random(rows, columns, seed=seed) * 100).round().to(dtype) * unit
        x[:, 0] = 448.0  # so that codes are the numbers themselves
    x[rows // 2] *= seed % 4 != 1
    codes, step = kernels.round_rows(x)
    expected, scale = round_rows(x)
    assert torch.equal(step, scale)
    assert torch.equal(codes.float(), expected.float())


def test_the_kernel_rounds_many_rows_to_the_same_bits() -> None:
    """Of bfloat16, where the last bit of an inverse decides ties; and where a card multiplies with inverses."""
    x = random(128, 128, dtype=torch.bfloat16)
    codes, step = kernels.round_rows(x)
    for expected, scale in (round_rows(x), _on_a_card(x)):
        assert torch.equal(step, scale)
        assert torch.equal(codes.float(), expected.float())


def _on_a_card(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    with MultipliesWithInverses():
        return round_rows(x)


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize(("rows", "columns", "out"), [(1, 16, 8), (130, 160, 136), (7, 129, 130)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("bias", [False, True])
def test_tiles_compute_what_the_reference_does(
    rows: int, columns: int, out: int, dtype: torch.dtype, bias: bool
) -> None:
    x, w = random(rows, columns, dtype=dtype), weight(out, columns, 3, dtype if bias else None)
    found = fp8_linear(x, w, "triton")
    assert found.shape == (rows, out)
    assert found.isfinite().all()
    expected = exact(x, w)
    assert float((found.double() - expected).norm() / expected.norm()) < LIMIT[dtype]


def test_a_row_of_a_tile_does_not_depend_on_its_neighbours() -> None:
    x, w = random(140, 160, dtype=torch.bfloat16), weight(40, 160, 3)
    whole = fp8_linear(x, w, "triton")
    for count in (1, 64, 129):
        assert torch.equal(fp8_linear(x[:count], w, "triton"), whole[:count]), count


def test_blocks_of_rows_beyond_the_first_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three blocks of rows are more than are computed together."""
    monkeypatch.setattr(kernels, "_TOGETHER", 2)
    x, w = random(2 * 128 + 5, 32, dtype=torch.bfloat16), weight(130, 32, 3)
    found = fp8_linear(x, w, "triton")
    assert float((found.double() - exact(x, w)).norm() / exact(x, w).norm()) < LIMIT[torch.bfloat16]


def test_wrong_arguments_are_named() -> None:
    x, w = random(3, 32), weight(8, 32, 1)
    for changed, other, message in (
        (x[:, :16], w, "x must be"),
        (x.double(), w, "x must be"),
        (x, replace(w, codes=w.codes.float()), "codes must be"),
        (x, replace(w, scale=w.scale[:4]), "scales must be"),
        (x, replace(w, bias=torch.ones(8).half()), "bias must be"),
    ):
        with pytest.raises(ValueError, match=message):
            fp8_linear(changed, other)


class Library:
    """Stands in for `torch._scaled_mm` of a card, whose rules of shapes it checks: PyTorch on a CPU has none or another."""

    def __init__(self, error: float = 0.0, depends: bool = False) -> None:
        self.error, self.depends, self.rows = error, depends, set[int]()

    def __call__(
        self,
        a: torch.Tensor,
        b: torch.Tensor,
        *,
        scale_a: torch.Tensor,
        scale_b: torch.Tensor,
        bias: torch.Tensor | None,
        out_dtype: torch.dtype,
        use_fast_accum: bool,
    ) -> torch.Tensor:
        assert a.dtype == b.dtype == torch.float8_e4m3fn
        assert (scale_a.shape, scale_b.shape) == ((a.shape[0], 1), (1, b.shape[1]))
        assert b.stride(0) == 1
        assert not use_fast_accum
        if b.shape[0] % 16 or b.shape[1] % 16:
            raise RuntimeError("Expected both dimensions of mat2 to be divisible by 16")
        self.rows.add(a.shape[0])
        product = (a.double() @ b.double()) * scale_a.double() * scale_b.double() * (1 + self.error)
        product = product * (1 + 2**-7 * (a.shape[0] % 128)) if self.depends else product
        return (product + (0 if bias is None else bias.double())).to(out_dtype)


def measured(monkeypatch: pytest.MonkeyPatch, library: Library, out: int = 32) -> Rows:
    monkeypatch.setattr(torch, "_scaled_mm", library)
    monkeypatch.setattr(kernels, "round_rows", round_rows)  # the same bits, and sooner
    return measure([weight(out, 64, 1), weight(16, 32, 2)])


def test_the_library_serves_where_its_rows_are_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    library = Library()
    rows = measured(monkeypatch, library)
    assert rows.proven
    assert rows.tile is None
    assert all(count % rows.multiple == 0 for count in library.rows)
    x, w = random(21, 64, dtype=torch.bfloat16), weight(32, 64, 1, torch.bfloat16)
    found = fp8_linear(x, w, "library", rows)
    assert torch.equal(found, fp8_linear(x, w))


@pytest.mark.parametrize(
    ("library", "out"),
    [(Library(error=0.1), 32), (Library(depends=True), 32), (Library(), 24)],
    ids=["wrong", "mixed", "refuses"],
)
def test_else_tiles_of_our_own_do(monkeypatch: pytest.MonkeyPatch, library: Library, out: int) -> None:
    assert measured(monkeypatch, library, out) == OWN_TILES
