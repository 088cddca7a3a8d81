"""The bookkeeping of a decoding step on the card."""

from __future__ import annotations

import torch

from edgewise.kernels.limits import PAGE_TOKENS
from tests.kernels.interpreter import interpreted

step_rows = interpreted("step_rows")
long_rows = interpreted("long_rows")
embedding = interpreted("embed")
products = interpreted("decode_product")


def test_slots_are_page_and_offset() -> None:
    table = torch.randperm(70 * 5, generator=torch.Generator().manual_seed(1)).int().view(70, 5)
    positions = torch.arange(70) % (5 * PAGE_TOKENS)
    positions[::7] = -1
    expected = [
        -1 if position < 0 else int(table[row, position // PAGE_TOKENS]) * PAGE_TOKENS + position % PAGE_TOKENS
        for row, position in enumerate(positions.tolist())
    ]
    assert step_rows.slots_of(positions, table).tolist() == expected


def test_rows_move_on_and_padding_stays() -> None:
    positions, places = torch.tensor([3, -1, 0, 2**33]), torch.tensor([7, 7, 0, 1])
    step_rows.move_on(positions, places)
    assert positions.tolist() == [4, -1, 1, 2**33 + 1]
    assert places.tolist() == [8, 7, 1, 2]


def test_norms_of_long_rows_are_those_of_float64() -> None:
    generator = torch.Generator().manual_seed(2)
    for hidden in (48, 512, 1000):
        x, delta = (torch.randn((5, hidden), generator=generator) for _ in range(2))
        weight, post = (torch.rand(hidden, generator=generator) + 0.5 for _ in range(2))

        def norm(value: torch.Tensor, by: torch.Tensor) -> torch.Tensor:
            return value * torch.rsqrt(value.square().mean(-1, keepdim=True) + 1e-5) * by.double()

        for post_norm in (None, post):
            more = delta.double() if post_norm is None else norm(delta.double(), post_norm)
            stream = x.clone()
            found = long_rows.add_rms_norm(stream, delta, weight, 1e-5, torch.float32, post_norm)
            torch.testing.assert_close(stream.double(), x.double() + more, rtol=1e-5, atol=1e-6)
            torch.testing.assert_close(found.double(), norm(x.double() + more, weight), rtol=1e-5, atol=1e-6)
        first = long_rows.add_rms_norm(x.clone(), None, weight, 1e-5, torch.float32)
        torch.testing.assert_close(first.double(), norm(x.double(), weight), rtol=1e-5, atol=1e-6)


def test_gates_of_long_rows_are_those_of_float64() -> None:
    both = torch.randn((3, 2 * 1500), generator=torch.Generator().manual_seed(3))
    gate, up = both.double().chunk(2, -1)
    expected = {"silu": torch.nn.functional.silu(gate), "gelu_tanh": torch.nn.functional.gelu(gate, approximate="tanh")}
    for activation, value in expected.items():
        torch.testing.assert_close(long_rows.activate(both, activation).double(), value * up, rtol=1e-5, atol=1e-6)


def test_a_step_begins_with_rows_of_the_table() -> None:
    generator = torch.Generator().manual_seed(4)
    table, norm = torch.randn((9, 1040), generator=generator), torch.rand(1040, generator=generator)
    stream = products.Residual.empty(4, 1040, torch.float32, torch.device("cpu"))
    for part in (stream.x, stream.scaled, stream.squares):
        part.fill_(torch.nan)
    embedding.embed(torch.tensor([8, 0, -1, 3]), table, norm, stream, 2.0)
    expected = table[[8, 0, 0, 3]] * 2.0
    torch.testing.assert_close(stream.x, expected)
    torch.testing.assert_close(stream.scaled, expected * norm)
    torch.testing.assert_close(stream.squares, expected.square().view(4, -1, 16).sum(-1))
