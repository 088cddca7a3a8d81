from __future__ import annotations

import sys

import pytest
import torch

from edgewise.kernels import compiled as gate
from edgewise.kernels.row_sum import row_sum
from edgewise.kernels.tile_product import tile_product

CPU = torch.device("cpu")


def test_the_cpu_takes_torch() -> None:
    a, b = torch.randn(3, 5, 7), torch.randn(3, 7, 4)
    out = torch.empty(3, 5, 4)
    assert tile_product(a, b, out=out) is out
    assert torch.equal(out, torch.bmm(a, b))
    assert torch.equal(tile_product(a, b), out)
    assert torch.equal(row_sum(a), a.sum(-1))
    assert not gate.compiled(CPU)
    assert gate.origin(CPU) == "torch"


def test_a_cuda_machine_without_triton_says_so_once(
    monkeypatch: pytest.MonkeyPatch, capture_warnings: list[tuple[str, dict[str, object]]]
) -> None:
    monkeypatch.setitem(sys.modules, "edgewise.kernels.triton.trial", None)
    device = torch.device("cuda", 7)
    assert not gate.compiled(device)
    assert not gate.compiled(device)
    gate.compiled.cache_clear()
    ((event, fields),) = capture_warnings
    assert event == "triton_unusable"
    assert "cannot be imported" in str(fields["reason"])
    assert "TRITON_CACHE_DIR" in str(fields["remedy"])


@pytest.fixture
def capture_warnings(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, object]]]:
    found: list[tuple[str, dict[str, object]]] = []
    monkeypatch.setattr(gate.log, "warning", lambda event, **fields: found.append((event, fields)))
    return found


def test_wrong_arguments_are_named() -> None:
    a, b = torch.zeros(2, 3, 4), torch.zeros(2, 4, 5)
    with pytest.raises(ValueError, match=r"a must be \[batch, rows, inner\]"):
        tile_product(a, b[:1])
    with pytest.raises(ValueError, match=r"a must be \[batch, rows, inner\]"):
        tile_product(a, b.transpose(1, 2))
    with pytest.raises(ValueError, match=r"out must be \(2, 3, 5\)"):
        tile_product(a, b, out=torch.zeros(2, 5, 3))
    with pytest.raises(ValueError, match="float32 on one device"):
        tile_product(a, b.half())
    with pytest.raises(ValueError, match="float32 on one device"):
        tile_product(a, b.to("meta"))
    with pytest.raises(ValueError, match=r"columns\] float32"):
        row_sum(a.double())
