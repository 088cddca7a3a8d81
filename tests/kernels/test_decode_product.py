"""The products of decoding, under Triton's interpreter, compared with float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from edgewise.kernels.reference.fp8_linear import round_rows
from tests.kernels.interpreter import interpreted

product = interpreted("decode_product")
sums = interpreted("sums")
post_norm = interpreted("post_norm")
triton, tl = product.triton, product.tl
pytestmark = pytest.mark.filterwarnings("ignore:(overflow|invalid value):RuntimeWarning")  # numpy's, which interprets

EPS = 1e-5
FORMATS = ("float", "int8", "int4", "fp8")
CUTS = [
    ("float", product.Blocks(16, 256, 2)),
    ("float", product.Blocks(16, 256, 2, held=256, fetched=4096)),
    ("fp8", product.Blocks(16, 256, 2, form="ptx")),
    ("fp8", product.Blocks(64, 256, 2, form="native")),
    *(
        (stored, product.Blocks(16, 512, 2, form=form))
        for stored in ("int8", "int4")
        for form in ("plain", "ptx", "integers")
    ),
    ("int8", product.Blocks(16, 512, 2, form="integers", steps=2, warps=8)),
    ("int4", product.Blocks(32, 512, 2, form="integers", steps=1, warps=4)),
]


def random(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def weight(stored: str, out: int, inner: int, dtype: torch.dtype, seed: int, bias: bool) -> tuple[Any, torch.Tensor]:
    """A random weight, and what it stands for in float64."""
    plus = random(out, seed=seed + 9, dtype=dtype) if bias else None
    if stored == "float":
        codes = random(out, inner, seed=seed, dtype=dtype)
        return product.Weight(codes, bias=plus), codes.double()
    if stored == "fp8":
        codes = random(out, inner, seed=seed).to(torch.float8_e4m3fn)
        scale = random(out, seed=seed + 1).abs() + 0.1
        return product.Weight(codes, scale, bias=plus), codes.double() * scale.double()[:, None]
    generator = torch.Generator().manual_seed(seed)
    scale = (random(out, inner // 32, seed=seed + 1).abs() / 16 + 0.01).half()
    wide = scale.double().repeat_interleave(32, dim=1)
    if stored == "int8":
        codes = torch.randint(-127, 128, (out, inner), generator=generator, dtype=torch.int8)
        return product.Weight(codes, scale, bias=plus), codes.double() * wide
    numbers = torch.randint(0, 16, (out, inner), generator=generator, dtype=torch.uint8)
    minimum = random(out, inner // 32, seed=seed + 2).half()
    groups = numbers.view(out, -1, 2, 16)
    packed = (groups[:, :, 0] | groups[:, :, 1] << 4).reshape(out, inner // 2)
    return product.Weight(packed, scale, minimum, plus), numbers.double() * wide + minimum.double().repeat_interleave(
        32, dim=1
    )


def stream(rows: int, hidden: int, dtype: torch.dtype, norm: torch.Tensor, seed: int = 5) -> Any:
    """A residual stream as `embed` and `add` leave it."""
    x = random(rows, hidden, seed=seed)
    return product.Residual(x, (x * norm).to(dtype), (x * x).view(rows, -1, 16).sum(-1))


def close(result: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype, rounded: bool = False) -> None:
    """`rounded`: activations are, to 15 bits of their group."""
    most = max({torch.float32: 1e-5, torch.float16: 3e-3, torch.bfloat16: 2e-2}[dtype], 1e-4 if rounded else 0)
    assert float((result.double() - expected).norm() / expected.norm()) < most


def multiplied(a: torch.Tensor, stored: str) -> torch.Tensor:
    """Activations as weights in a format are multiplied with them, float64: beside fp8 they are rounded to it, row by row."""
    if stored != "fp8":
        return a.double()
    codes, step = round_rows(a)
    return codes.double() * step.double()[:, None]


def normed(r: Any, stored: str = "float") -> torch.Tensor:
    x: torch.Tensor = r.x.double()
    return multiplied(r.scaled, stored) / ((x * x).mean(-1, keepdim=True) + EPS).sqrt()


def nothing(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.full(shape, torch.nan, dtype=dtype)


@settings(max_examples=16, deadline=None)
@given(
    cut=st.sampled_from(CUTS),
    dtype=st.sampled_from([torch.bfloat16, torch.float16, torch.float32]),
    rows=st.integers(1, 20),
    hidden=st.sampled_from([32, 96]),
    out=st.integers(8, 40),
    bias=st.booleans(),
    wide=st.booleans(),
)
def test_project(
    cut: tuple[str, Any], dtype: torch.dtype, rows: int, hidden: int, out: int, bias: bool, wide: bool
) -> None:
    stored, blocks = cut
    hidden += blocks.held and 480  # what is held is less than the whole
    hidden -= hidden % 256 if blocks.held else 0
    w, values = weight(stored, out, hidden, dtype, 3, bias)
    r = stream(rows, hidden, dtype, random(hidden, seed=8))
    result = nothing(rows, out, dtype=torch.float32 if wide else dtype)
    product.project(r, w, EPS, result, blocks)
    expected = normed(r, stored) @ values.T + (w.bias.double() if bias else 0)
    close(result, expected, dtype, rounded=blocks.form == "integers")


@settings(max_examples=10, deadline=None)
@given(
    cut=st.sampled_from([cut for cut in CUTS if not cut[1].held]),
    dtype=st.sampled_from([torch.bfloat16, torch.float16]),
    rows=st.integers(1, 20),
    ffn=st.integers(8, 40),
    bias=st.booleans(),
    activation=st.sampled_from(["silu", "gelu_tanh"]),
)
def test_gated(cut: tuple[str, Any], dtype: torch.dtype, rows: int, ffn: int, bias: bool, activation: str) -> None:
    stored, blocks = cut
    w, values = weight(stored, 2 * ffn, 64, dtype, 3, bias)
    r = stream(rows, 64, dtype, random(64, seed=8))
    result: torch.Tensor = product.gated(r, w, EPS, nothing(rows, ffn, dtype=dtype), activation, blocks)
    both = normed(r, stored) @ values.T + (w.bias.double() if bias else 0)
    act = (
        torch.nn.functional.silu if activation == "silu" else lambda x: torch.nn.functional.gelu(x, approximate="tanh")
    )
    close(result, act(both[:, :ffn]) * both[:, ffn:], dtype)


@settings(max_examples=10, deadline=None)
@given(
    cut=st.sampled_from([cut for cut in CUTS if not cut[1].held]),
    rows=st.integers(1, 20),
    inner=st.sampled_from([32, 96]),
    hidden=st.sampled_from([16, 48, 80]),
    bias=st.booleans(),
)
def test_add_leaves_what_the_next_product_needs(
    cut: tuple[str, Any], rows: int, inner: int, hidden: int, bias: bool
) -> None:
    stored, blocks = cut
    dtype = torch.bfloat16
    w, values = weight(stored, hidden, inner, dtype, 3, bias)
    a, norm = random(rows, inner, seed=4, dtype=dtype), random(hidden, seed=6)
    x = random(rows, hidden, seed=5)
    r = product.Residual(
        x.clone(), nothing(rows, hidden, dtype=dtype), nothing(rows, hidden // 16, dtype=torch.float32)
    )
    product.add(a, w, r, norm, blocks)
    expected = x.double() + multiplied(a, stored) @ values.T + (w.bias.double() if bias else 0)
    close(r.x, expected, dtype)
    torch.testing.assert_close(r.scaled, (r.x * norm).to(dtype), rtol=2**-7, atol=0)
    torch.testing.assert_close(r.squares, (r.x * r.x).view(rows, -1, 16).sum(-1))


@pytest.mark.parametrize("rows", [20, 33])
@pytest.mark.parametrize("kind", ["project", "gated", "add"])
def test_wide_blocks(kind: str, rows: int) -> None:
    """The kernel for many rows, which on a card has the same bits."""
    dtype = torch.bfloat16
    w, values = weight("float", 96, 96, dtype, 3, bias=True)
    r, norm = stream(rows, 96, dtype, random(96, seed=8)), random(96, seed=6)
    for blocks in (product.Blocks(64, 256, 2, wide=True), product.Blocks(16, 512, 2)):
        other = product.Residual(r.x.clone(), r.scaled.clone(), r.squares.clone())
        if kind == "add":
            product.add(r.scaled, w, other, norm, blocks)
            result, expected = other.x, r.x.double() + r.scaled.double() @ values.T + w.bias.double()
        elif kind == "project":
            result = product.project(other, w, EPS, nothing(rows, 96, dtype=dtype), blocks)
            expected = normed(r) @ values.T + w.bias.double()
        else:
            result = product.gated(other, w, EPS, nothing(rows, 48, dtype=dtype), "silu", blocks)
            both = normed(r) @ values.T + w.bias.double()
            expected = torch.nn.functional.silu(both[:, :48]) * both[:, 48:]
        close(result, expected, dtype)


@pytest.mark.parametrize("cut", CUTS)
def test_a_row_does_not_depend_on_its_neighbours(cut: tuple[str, Any]) -> None:
    """Nor on the blocks, which only a card can show: numpy's products, which interpret, depend on their sizes."""
    stored, blocks = cut
    w, _ = weight(stored, 48, 512, torch.bfloat16, 3, bias=False)
    norm = random(48, seed=8)
    a = random(8, 512, seed=2, dtype=torch.bfloat16)
    whole = stream(8, 48, torch.bfloat16, norm)
    alone = product.Residual(*(each[5:6].clone() for each in (whole.x, whole.scaled, whole.squares)))
    product.add(a, w, whole, norm, blocks)
    product.add(a[5:6].clone(), w, alone, norm, blocks)
    for name in ("x", "scaled", "squares"):
        assert torch.equal(getattr(alone, name)[0], getattr(whole, name)[5])


@pytest.mark.parametrize(
    ("stored", "form"),
    [("float", "plain"), ("fp8", "plain"), ("fp8", "native"), ("int8", "integers"), ("int4", "integers")],
)
@pytest.mark.parametrize("poison", [torch.nan, torch.inf])
def test_what_is_not_finite_stays_in_its_row(stored: str, form: str, poison: float) -> None:
    w, _ = weight(stored, 48, 64, torch.bfloat16, 3, bias=False)
    r = stream(3, 64, torch.bfloat16, torch.ones(64))
    r.scaled[1, 5] = poison
    blocks = product.Blocks(*((64, 256) if form == "native" else (16, 512)), 2, form=form)
    result = product.project(r, w, EPS, nothing(3, 48, dtype=torch.bfloat16), blocks)
    if poison == torch.inf and form == "plain":
        result[1] = torch.where(result[1].isinf(), torch.nan, result[1])
    assert result[1].isnan().all()
    assert result[::2].isfinite().all()


def test_wrong_arguments_are_named() -> None:
    w, _ = weight("float", 48, 64, torch.bfloat16, 3, bias=False)
    r = stream(3, 64, torch.bfloat16, torch.ones(64))
    with pytest.raises(ValueError, match="out must be"):
        product.project(r, w, EPS, nothing(3, 47, dtype=torch.bfloat16))
    with pytest.raises(ValueError, match="activations must be"):
        product.add(r.scaled[:, :32], w, r, torch.ones(64))
    with pytest.raises(ValueError, match="activation must be"):
        product.gated(r, w, EPS, nothing(3, 24, dtype=torch.bfloat16), "relu")
    with pytest.raises(ValueError, match="needs scales"):
        product.project(r, product.Weight(w.codes.to(torch.int8)), EPS, nothing(3, 48, dtype=torch.bfloat16))


@settings(max_examples=8, deadline=None)
@given(
    cut=st.sampled_from([cut for cut in CUTS if not cut[1].held]),
    rows=st.integers(1, 20),
    hidden=st.sampled_from([32, 48, 80]),
    bias=st.booleans(),
)
def test_a_result_is_normed_before_it_is_added(cut: tuple[str, Any], rows: int, hidden: int, bias: bool) -> None:
    stored, blocks = cut
    dtype = torch.bfloat16
    w, values = weight(stored, hidden, 64, dtype, 3, bias)
    a, norm, post = random(rows, 64, seed=4, dtype=dtype), random(hidden, seed=6), random(hidden, seed=7)
    delta = product.plain(a, w, nothing(rows, hidden, dtype=dtype), blocks)
    close(delta, multiplied(a, stored) @ values.T + (w.bias.double() if bias else 0), dtype)
    x = random(rows, hidden, seed=5)
    r = product.Residual(
        x.clone(), nothing(rows, hidden, dtype=dtype), nothing(rows, hidden // 16, dtype=torch.float32)
    )
    post_norm.post_add(delta, post, r, norm, EPS)
    d = delta.double()
    expected = x.double() + d / ((d * d).mean(-1, keepdim=True) + EPS).sqrt() * post.double()
    close(r.x, expected, torch.float32)
    torch.testing.assert_close(r.scaled, (r.x * norm).to(dtype), rtol=2**-7, atol=0)
    torch.testing.assert_close(r.squares, (r.x * r.x).view(rows, -1, 16).sum(-1))


def test_integers_keep_what_bfloat16_has() -> None:
    """Activations of 15 bits: far below the half bit of bfloat16, whose own rounding is the last step of both."""
    w, values = weight("int8", 32, 1024, torch.float32, 3, bias=False)
    r = stream(4, 1024, torch.float32, random(1024, seed=8).abs() + 0.5)
    result = product.project(
        r, w, EPS, nothing(4, 32, dtype=torch.float32), product.Blocks(16, 512, 2, form="integers")
    )
    expected = normed(r) @ values.T
    assert float((result.double() - expected).norm() / expected.norm()) < 5e-5


@pytest.mark.parametrize("stored", ["int8", "int4"])
@pytest.mark.parametrize(("rows", "inner", "steps"), [(1, 1056, 2), (3, 96, 1)])
def test_few_rows_have_the_bits_of_matrix_instructions(stored: str, rows: int, inner: int, steps: int) -> None:
    """Whatever comes after the product, where the last step is not full, and beside a row that is not finite."""
    dtype = torch.bfloat16
    w, _ = weight(stored, 16, inner, dtype, 3, bias=True)
    few = product.Blocks(16, 512, 2, form="integers", steps=steps, warps=4)
    r, a = stream(rows, inner, dtype, random(inner, seed=8)), random(rows, inner, seed=4, dtype=dtype)
    a[1:, 40] = torch.nan
    found: list[list[torch.Tensor]] = []
    for blocks in (few, few._replace(steps=0)):
        added = product.Residual(
            random(rows, 16, seed=5), nothing(rows, 16, dtype=dtype), nothing(rows, 1, dtype=torch.float32)
        )
        product.add(a, w, added, random(16, seed=6), blocks)
        gates = product.gated(r, w, EPS, nothing(rows, 8, dtype=dtype), "silu", blocks)
        found.append([gates, added.x, added.scaled, added.squares])
    for own, other in zip(*found, strict=True):
        torch.testing.assert_close(own, other, rtol=0, atol=0, equal_nan=True)
        assert own[0].isfinite().all()
    assert found[0][1][1:].isnan().all()


def test_impossible_cuts_are_named() -> None:
    four, _ = weight("int4", 48, 64, torch.bfloat16, 3, bias=False)
    plain, _ = weight("float", 48, 64, torch.bfloat16, 3, bias=False)
    r = stream(3, 64, torch.bfloat16, torch.ones(64))
    out = nothing(3, 48, dtype=torch.bfloat16)
    for w, blocks, message in (
        (four, product.Blocks(16, 256, 2), "4 bits are multiplied in steps"),
        (plain, product.Blocks(16, 512, 2, form="integers"), "integers are multiplied"),
        (four, product.Blocks(16, 512, 2, form="integers", steps=1, warps=16), "two outputs each"),
        (four, product.Blocks(16, 512, 2, wide=True), "floats of 16 bits"),
        (plain, product.Blocks(16, 256, 2, held=256), "cannot be held back"),
        (plain, product.Blocks(64, 256, 2, form="native"), "fp8 alone is multiplied as it is"),
    ):
        with pytest.raises(ValueError, match=message):
            product.project(r, w, EPS, out, blocks)


def test_sums_of_squares_are_added_in_pairs_of_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    """((a + b) + (c + d)), which tells itself from any other order where a number is too large for its neighbour."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")

    @triton.jit  # type: ignore[untyped-decorator]
    def rows(x: Any, out: Any, count: tl.constexpr, width: tl.constexpr) -> None:  # type: ignore[name-defined]
        row, at = tl.arange(0, count), tl.arange(0, width)
        tl.store(out + row, sums.sum_of_pairs(tl.load(x + row[:, None] * width + at[None, :]), count))

    x = torch.tensor([[2.0**24, 1.0, 0.0, 1.0], [1.0, 2.0, 3.0, 4.0]])
    out = nothing(2, dtype=torch.float32)
    rows[(1,)](x, out, 2, 4)
    assert out.tolist() == [2.0**24, 10.0]
