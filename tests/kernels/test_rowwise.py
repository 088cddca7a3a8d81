"""Norm, rotation, activation and lookup: right, and the same bits for a row in any batch."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from edgewise.kernels.embedding import embedding
from edgewise.kernels.gelu_mul import gelu_mul
from edgewise.kernels.rms_norm import rms_norm
from edgewise.kernels.rope import apply_rope, rope_rows, rope_tables
from edgewise.kernels.rope_parameters import RopeParameters
from edgewise.kernels.silu_mul import silu_mul
from edgewise.kernels.softcap import softcap

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 3


def check_rows(operation: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> None:
    whole = operation(x)
    for rows in (1, 2, 3, 5, 8, 13, 40):
        assert torch.equal(operation(x[:rows]), whole[:rows])
        assert torch.equal(operation(x[7 : 7 + rows]), whole[7 : 7 + rows])


@pytest.mark.parametrize("size", [64, 100, 576, 2048])
def test_rms_norm(size: int) -> None:
    x, weight = random(700, size), random(size, seed=1)
    expected = x.double() / (x.double().square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double()
    torch.testing.assert_close(rms_norm(x, weight, 1e-5).double(), expected, rtol=1e-5, atol=1e-5)
    check_rows(lambda rows: rms_norm(rows, weight, 1e-5, torch.bfloat16), x)


def test_rms_norm_with_a_weight_per_head() -> None:
    x, weight = random(50, 6, 32)[:, :5], random(5, 32, seed=1)
    expected = torch.stack([rms_norm(x[:, head], weight[head], 1e-6) for head in range(5)], dim=1)
    assert torch.equal(rms_norm(x, weight, 1e-6), expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [7, 64, 1537])
def test_silu_mul(dtype: torch.dtype, size: int) -> None:
    x = (random(300, 2 * size) * 4).to(dtype)
    gate, up = x.double().chunk(2, -1)
    expected = (gate * torch.sigmoid(gate) * up).to(dtype)
    torch.testing.assert_close(silu_mul(x), expected)
    check_rows(silu_mul, x)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [7, 64, 1537])
def test_gelu_mul(dtype: torch.dtype, size: int) -> None:
    x = (random(300, 2 * size) * 4).to(dtype)
    gate, up = x.double().chunk(2, -1)
    expected = (torch.nn.functional.gelu(gate, approximate="tanh") * up).to(dtype)
    torch.testing.assert_close(gelu_mul(x), expected)
    check_rows(gelu_mul, x)


@pytest.mark.parametrize("size", [7, 64, 1537])
def test_softcap(size: int) -> None:
    x = random(300, size) * 20
    expected = 30.0 * torch.tanh(x.double() / 30.0)
    torch.testing.assert_close(softcap(x.clone(), 30.0).double(), expected, rtol=0, atol=1e-5)
    check_rows(lambda rows: softcap(rows.clone(), 30.0), x)


@pytest.mark.parametrize("gated", [silu_mul, gelu_mul])
def test_gates_at_the_ends_of_the_range(gated: Callable[[torch.Tensor], torch.Tensor]) -> None:
    x = torch.tensor([[-200.0, 200.0, 0.0, torch.nan, 1.0, 1.0, 1.0, 1.0]])
    out = gated(x)[0]
    assert out[:3].tolist() == [0.0, 200.0, 0.0]
    assert out[3].isnan()


@pytest.mark.parametrize("head_dim", [8, 64, 80])
def test_rope_rotates_pairs_by_their_angle(head_dim: int) -> None:
    table = rope_tables(RopeParameters(theta=10_000.0), head_dim, 600)
    positions = torch.arange(600)
    x = random(600, 3, head_dim)
    out = apply_rope(x, rope_rows(table, positions))
    angles = positions[:, None].double() * 10_000.0 ** (-torch.arange(0, head_dim, 2).double() / head_dim)
    pairs = torch.complex(x[..., : head_dim // 2].double(), x[..., head_dim // 2 :].double())
    turned = pairs * torch.polar(torch.ones_like(angles), angles)[:, None]
    expected = torch.cat((turned.real, turned.imag), -1)
    torch.testing.assert_close(out.double(), expected, rtol=0, atol=1e-3)
    for rows in (1, 3, 8, 50):
        part = apply_rope(x[9 : 9 + rows], rope_rows(table, positions[9 : 9 + rows]))
        assert torch.equal(part, out[9 : 9 + rows])


def qwen2_vl_rows(cos: torch.Tensor, sections: list[int]) -> torch.Tensor:
    """As transformers' Qwen2-VL picks from cosines [3, T, n] of both halves (`apply_multimodal_rotary_pos_emb`)."""
    return torch.cat([part[i % 3] for i, part in enumerate(torch.split(cos, sections * 2, dim=-1))], dim=-1)


def qwen3_vl_rows(cos: torch.Tensor, sections: list[int]) -> torch.Tensor:
    """As transformers' Qwen3-VL does, for one half (`apply_interleaved_mrope`)."""
    half = cos[..., : cos.shape[-1] // 2]
    picked = half[0].clone()
    for axis in (1, 2):
        picked[..., axis : sections[axis] * 3 : 3] = half[axis, ..., axis : sections[axis] * 3 : 3]
    return torch.cat((picked, picked), dim=-1)


@pytest.mark.parametrize(("interleaved", "picked"), [(False, qwen2_vl_rows), (True, qwen3_vl_rows)])
def test_rope_by_three_positions(interleaved: bool, picked: Callable[..., torch.Tensor]) -> None:
    table = rope_tables(RopeParameters(sections=(6, 5, 5), interleaved=interleaved), 32, 200)
    positions = torch.randint(0, 200, (3, 40), generator=torch.Generator().manual_seed(2))
    rows = rope_rows(table, positions)
    flat = [rope_rows(table, axis) for axis in positions]
    assert torch.equal(rows.cos[:, 0], picked(torch.stack([one.cos[:, 0] for one in flat]), [6, 5, 5]))
    assert torch.equal(rows.sin[:, 0].abs(), picked(torch.stack([one.sin[:, 0].abs() for one in flat]), [6, 5, 5]))
    equal = rope_rows(table, positions[:1].expand(3, -1))
    assert torch.equal(equal.cos, flat[0].cos)
    assert torch.equal(equal.sin, flat[0].sin)


def test_three_positions_need_sections() -> None:
    with pytest.raises(ValueError, match="sections"):
        rope_rows(rope_tables(RopeParameters(), 32, 20), torch.zeros(3, 4, dtype=torch.int64))
    with pytest.raises(ValueError, match="sum to 16"):
        rope_tables(RopeParameters(sections=(6, 5, 6)), 32, 20)


def test_rope_leaves_the_dimensions_beyond_its_own() -> None:
    rows = rope_rows(rope_tables(RopeParameters(), 16, 60), torch.arange(60))
    x = random(60, 3, 40)
    out = apply_rope(x, rows)
    assert torch.equal(out[..., 16:], x[..., 16:])
    assert torch.equal(out[..., :16], apply_rope(x[..., :16], rows))


def test_longrope_takes_its_set_of_divisors_by_the_served_context() -> None:
    def angles(served: int) -> list[float]:
        longrope = RopeParameters(
            kind="longrope",
            original_max_position=100,
            served_context=served,
            short_divisors=(1.0, 2.0),
            long_divisors=(4.0, 8.0),
        )
        return rope_tables(longrope, 4, 2).sin[1].asin().tolist()

    assert angles(100) == pytest.approx([1.0, 0.01 / 2], rel=1e-5)
    assert angles(101) == pytest.approx([0.25, 0.01 / 8], rel=1e-5)


def test_rope_tables_do_not_depend_on_the_number_of_positions() -> None:
    parameters = RopeParameters(kind="yarn", theta=5e5, factor=4.0, original_max_position=1024, attention_factor=1.1)
    long, short = (rope_tables(parameters, 64, positions) for positions in (9000, 77))
    assert torch.equal(long.cos[:77], short.cos)
    assert torch.equal(long.sin[:77], short.sin)


def test_linear_rope_is_rope_at_scaled_positions() -> None:
    plain = rope_tables(RopeParameters(), 32, 50)
    scaled = rope_tables(RopeParameters(kind="linear", factor=2.0), 32, 100)
    torch.testing.assert_close(scaled.cos[::2], plain.cos, rtol=0, atol=1e-5)


def test_rope_divisors_stretch_single_frequencies() -> None:
    divisors = torch.ones(16)
    divisors[3] = 4.0
    plain, divided = (rope_tables(RopeParameters(), 32, 64, divisors=d) for d in (None, divisors))
    same = [i for i in range(16) if i != 3]
    assert torch.equal(plain.sin[:, same], divided.sin[:, same])
    torch.testing.assert_close(divided.sin[::4, 3], plain.sin[:16, 3], rtol=0, atol=1e-6)


def test_embedding() -> None:
    table = random(10, 4).bfloat16()
    out = embedding(torch.tensor([3, 3, 9]), table)
    assert out.dtype is torch.float32
    assert torch.equal(out, table[[3, 3, 9]].float())


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(ValueError, match="weight must be float32"):
        rms_norm(torch.zeros(2, 8), torch.zeros(7), 1e-5)
    with pytest.raises(ValueError, match="weight must be float32"):
        rms_norm(torch.zeros(2, 8), torch.zeros(8, dtype=torch.bfloat16), 1e-5)
    with pytest.raises(ValueError, match="gate_up"):
        silu_mul(torch.zeros(2, 7))
    with pytest.raises(ValueError, match="gate_up"):
        gelu_mul(torch.zeros(2, 7))
    with pytest.raises(ValueError, match="cap positive"):
        softcap(torch.zeros(2), 0.0)
    with pytest.raises(ValueError, match="rotary_dim must be even"):
        rope_tables(RopeParameters(), 7, 10)
    with pytest.raises(ValueError, match=r"divisors must be \[4\]"):
        rope_tables(RopeParameters(), 8, 10, divisors=torch.ones(8))
    table = rope_tables(RopeParameters(), 8, 10)
    with pytest.raises(ValueError, match="positions"):
        rope_rows(table, torch.zeros(2))
    with pytest.raises(ValueError, match="x must be"):
        apply_rope(torch.zeros(3, 1, 8), rope_rows(table, torch.arange(2)))
    with pytest.raises(ValueError, match="tokens"):
        embedding(torch.zeros(2), torch.zeros(4, 4))
    assert math.isclose(table.cos[0, 0].item(), 1.0)
