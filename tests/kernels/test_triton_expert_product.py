"""Products with experts' matrices, under Triton's interpreter, compared with float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kernels.interpreter import interpreted

experts = interpreted("expert_product")
routing = interpreted("routing")
weights = interpreted("weights")
product = interpreted("decode_product")
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of numpy, about rows that are none

CPU = torch.device("cpu")
EPS = 1e-5
BF16 = torch.bfloat16
FORMS = [("float", "plain"), *((stored, form) for stored in ("int8", "int4") for form in ("plain", "ptx", "integers"))]
LIMIT = {torch.float32: 1e-5, torch.float16: 3e-3, BF16: 2e-2}


def random(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def matrices(stored: str, count: int, out: int, inner: int, dtype: torch.dtype, seed: int) -> tuple[Any, torch.Tensor]:
    """Of all experts, and what they stand for in float64 [experts, out, inner]."""
    floats = random(count * out, inner, seed=seed, dtype=dtype) * inner**-0.5
    if stored == "float":
        return product.Weight(floats), floats.double().view(count, out, inner)
    rounded = weights.quantize(floats, stored)
    return rounded, weights.unpack(rounded, torch.empty(floats.shape)).double().view(count, out, inner)


def nothing(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.full(shape, torch.nan, dtype=dtype)


def routes(rows: int, count: int, k: int, tile_rows: int, padding: bool = False) -> Any:
    slots = torch.arange(rows)
    slots[1::3] = -1 if padding else 0
    return routing.route_tokens(random(rows, count, seed=9) * 2, slots, k, normalised=True, tile_rows=tile_rows)


def stream(x: torch.Tensor, norm: torch.Tensor, dtype: torch.dtype) -> Any:
    """A residual stream as `embed` and `add` leave it."""
    return product.Residual(x.clone(), (x * norm).to(dtype), (x * x).view(len(x), -1, 16).sum(-1))


def error(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found.double() - expected).norm() / expected.norm())


def mixed(a: torch.Tensor, routed: Any, gate_up: torch.Tensor, down: torch.Tensor, activation: str) -> torch.Tensor:
    """[T, hidden] float64, of activations [T, hidden] that are normed."""
    act: Any = torch.nn.functional.silu
    if activation == "gelu_tanh":
        act = lambda x: torch.nn.functional.gelu(x, approximate="tanh")  # noqa: E731
    out = torch.zeros(len(a), down.shape[1], dtype=torch.float64)
    for token, (own, shares) in enumerate(zip(routed.experts.tolist(), routed.weights.double(), strict=True)):
        for expert, share in zip(own, shares, strict=True):
            if expert >= 0:
                gate, up = (gate_up[expert] @ a[token].double()).chunk(2)
                out[token] += share * (down[expert] @ (act(gate) * up))
    return out


def computed(
    a: torch.Tensor, routed: Any, gate_up: Any, down: Any, form: str = "plain", **options: Any
) -> torch.Tensor:
    """Of prompts: [T, hidden] float32."""
    pairs, inner, hidden = routed.experts.numel(), down.columns, a.shape[1]
    active = experts.gated_experts(a, routed, gate_up, nothing(pairs, inner, dtype=a.dtype), form=form, **options)
    parts = experts.down_experts(active, routed, down, nothing(pairs, hidden, dtype=a.dtype), form)
    found: torch.Tensor = experts.sum_experts(parts, routed, nothing(len(a), hidden, dtype=torch.float32))
    return found


@settings(max_examples=7, deadline=None)
@given(
    kind=st.sampled_from(FORMS),
    dtype=st.sampled_from([BF16, torch.float16, torch.float32]),
    rows=st.integers(1, 12),
    count=st.integers(2, 4),
    k=st.integers(1, 2),
    hidden=st.sampled_from([32, 64]),
    inner=st.sampled_from([32, 64]),
    activation=st.sampled_from(["silu", "gelu_tanh"]),
    padding=st.booleans(),
)
def test_a_step(
    kind: tuple[str, str],
    dtype: torch.dtype,
    rows: int,
    count: int,
    k: int,
    hidden: int,
    inner: int,
    activation: str,
    padding: bool,
) -> None:
    """Norm, experts, and what the next product needs."""
    stored, form = kind
    gate_up, sides = matrices(stored, count, 2 * inner, hidden, dtype, seed=3)
    down, ends = matrices(stored, count, hidden, inner, dtype, seed=4)
    routed = routes(rows, count, k, experts.step_tile_rows(rows), padding)
    x, norm, after = random(rows, hidden, seed=5), random(hidden, seed=6), random(hidden, seed=7)
    r = stream(x, norm, dtype)
    normed = r.scaled.double() / ((x * x).double().mean(-1, keepdim=True) + EPS).sqrt()
    expected = x.double() + mixed(normed, routed, sides, ends, activation)
    active = experts.gated_step(r, routed, gate_up, EPS, nothing(rows * k, inner, dtype=dtype), activation, form)
    parts = experts.down_experts(active, routed, down, nothing(rows * k, hidden, dtype=dtype), form)
    r.scaled.fill_(torch.nan)
    r.squares.fill_(torch.nan)
    experts.add_experts(parts, routed, r, after)
    assert error(r.x, expected) < max(LIMIT[dtype], 1e-4 if form == "integers" else 0)
    torch.testing.assert_close(r.scaled, (r.x * after).to(dtype), rtol=2**-7, atol=0)
    torch.testing.assert_close(r.squares, (r.x * r.x).view(rows, -1, 16).sum(-1))
    if padding and rows > 1:
        assert torch.equal(r.x[1], x[1])


@settings(max_examples=4, deadline=None)
@given(
    stored=st.sampled_from(["float", "int8", "int4"]),
    dtype=st.sampled_from([BF16, torch.float32]),
    rows=st.integers(1, 90),
    count=st.integers(2, 3),
    inner=st.sampled_from([32, 48]),
)
def test_prompts(stored: str, dtype: torch.dtype, rows: int, count: int, inner: int) -> None:
    """Tiles that are full, and the launches of more tokens than are routed together."""
    inner -= inner % 32 if stored != "float" else 0
    gate_up, sides = matrices(stored, count, 2 * inner, 32, dtype, seed=3)
    down, ends = matrices(stored, count, 32, inner, dtype, seed=4)
    routed = routes(rows, count, 2, experts.prompt_tile_rows(CPU))
    a = random(rows, 32, seed=5, dtype=dtype)
    found = computed(a, routed, gate_up, down)
    assert error(found, mixed(a, routed, sides, ends, "silu")) < LIMIT[dtype]


@pytest.mark.parametrize(
    ("kind", "rows"), [*((kind, 8) for kind in FORMS), *((kind, 70) for kind in FORMS if kind[1] == "plain")]
)
def test_a_token_does_not_depend_on_its_neighbours(kind: tuple[str, str], rows: int) -> None:
    """Nor on the sizes of tiles, which only a card can show: numpy's products, which interpret, depend on their sizes."""
    stored, form = kind
    tile = experts.step_tile_rows(8) if rows == 8 else experts.prompt_tile_rows(CPU)
    gate_up, _ = matrices(stored, 3, 64, 32, BF16, seed=3)
    down, _ = matrices(stored, 3, 32, 32, BF16, seed=4)
    a, logits = random(rows, 32, seed=5, dtype=BF16), random(rows, 3, seed=6)

    def run(part: slice) -> torch.Tensor:
        own, slots = logits[part].contiguous(), torch.arange(len(logits[part]))
        routed = routing.route_tokens(own, slots, 2, normalised=False, tile_rows=tile)
        return computed(a[part].contiguous(), routed, gate_up, down, form)

    whole = run(slice(0, rows))
    assert torch.equal(run(slice(5, 6)), whole[5:6])


def test_experts_that_no_token_chose_are_not_read() -> None:
    gate_up, sides = matrices("float", 6, 64, 64, BF16, seed=3)
    down, ends = matrices("float", 6, 64, 32, BF16, seed=4)
    routed = routes(1, 6, 2, 8)
    others = [expert for expert in range(6) if expert not in routed.experts[0].tolist()]
    gate_up.codes.view(6, 64, 64)[others] = torch.nan
    down.codes.view(6, 64, 32)[others] = torch.nan
    assert routed.tiles.shape[0] == 2
    a = random(1, 64, seed=5, dtype=BF16)
    assert error(computed(a, routed, gate_up, down), mixed(a, routed, sides.nan_to_num(), ends, "silu")) < LIMIT[BF16]


@pytest.mark.parametrize(("stored", "form"), [("float", "plain"), ("int4", "integers")])
def test_what_is_not_finite_stays_in_its_row(stored: str, form: str) -> None:
    gate_up, _ = matrices(stored, 3, 64, 64, BF16, seed=3)
    down, _ = matrices(stored, 3, 64, 32, BF16, seed=4)
    a = random(5, 64, seed=5, dtype=BF16)
    a[2, 7] = torch.nan
    found = computed(a, routes(5, 3, 2, 8), gate_up, down, form)
    assert found[2].isnan().all()
    assert found[[0, 1, 3, 4]].isfinite().all()


def test_wrong_arguments_are_named() -> None:
    gate_up, _ = matrices("float", 3, 64, 64, BF16, seed=3)
    down, _ = matrices("float", 3, 64, 32, BF16, seed=4)
    routed, a, out = routes(5, 3, 2, 8), random(5, 64, dtype=BF16), nothing(10, 32, dtype=BF16)
    r = stream(random(5, 64), torch.ones(64), BF16)
    with pytest.raises(ValueError, match="activation must be"):
        experts.gated_experts(a, routed, gate_up, out, "relu")
    with pytest.raises(ValueError, match="activations must be"):
        experts.gated_experts(a[:4], routed, gate_up, out)
    with pytest.raises(ValueError, match="a weight must be"):
        experts.gated_experts(a, routed, product.Weight(gate_up.codes[:128]), out)
    with pytest.raises(ValueError, match="share a float type"):
        experts.gated_experts(a, routed, gate_up, out.float())
    with pytest.raises(ValueError, match="8 or 4 bits"):
        experts.gated_experts(a, routed, product.Weight(gate_up.codes.to(torch.float8_e4m3fn)), out)
    with pytest.raises(ValueError, match="needs columns in multiples"):
        experts.down_experts(out, routed, product.Weight(down.codes.to(torch.int8)), a.repeat(2, 1))
    with pytest.raises(ValueError, match="parts must be"):
        experts.sum_experts(a, routed, r.x)
    with pytest.raises(ValueError, match="norm must be"):
        experts.add_experts(a.repeat(2, 1), routed, r, torch.ones(32))
