"""GGUF files on a card: blocks that it multiplies are taken as they are. Weights are read onto the CPU here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

from tests.kernels.interpreter import interpreted

for name in ("decode_product", "weights"):
    interpreted(name)

from edgewise.kernels.triton.weights import quantize as rounded  # noqa: E402 - Triton must be told to interpret first
from edgewise.kernels.triton.weights import unpack  # noqa: E402
from edgewise.models import tiny_gguf  # noqa: E402
from edgewise.models.decoder.config import read_config  # noqa: E402
from edgewise.models.decoder.cuda import loading  # noqa: E402
from edgewise.models.decoder.layout import Target  # noqa: E402
from edgewise.models.decoder.loading import load_decoder, read_rows  # noqa: E402
from edgewise.models.files import ModelFiles  # noqa: E402
from edgewise.models.tiny import local_files, make_tiny_model  # noqa: E402
from edgewise.models.weights.write import StoredTensor, write_gguf  # noqa: E402

CPU = torch.device("cpu")
MATRICES = ("qkv", "output", "gate_up", "down")


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of what is read as floats."""
    names: list[str] = []

    def stream(wanted: Sequence[Target], reader: Any, device: torch.device) -> Iterator[int]:
        for target in wanted:
            names.append(target.name)
            staged = torch.empty(target.out.shape, dtype=torch.float32)
            read_rows(target, staged, 0, reader)
            target.out.copy_(staged)
            yield target.out.nbytes

    monkeypatch.setattr(loading, "stream_targets", stream)
    return names


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> ModelFiles:
    """A tiny model of the family and in the blocks that the test's parameter names, which the package gguf makes."""
    family, kind = request.param

    def blocks(tensor: StoredTensor) -> StoredTensor:
        if len(tensor.shape) < 2:
            return tensor
        values = np.frombuffer(tensor.data, np.float32).reshape(tensor.shape)
        raw = gguf.quants.quantize(values, gguf.GGMLQuantizationType[kind])
        return StoredTensor(tensor.name, tensor.shape, kind, np.ascontiguousarray(raw).tobytes())

    def write(path: Path, metadata: Any, tensors: Sequence[StoredTensor]) -> None:
        write_gguf(path, metadata, [blocks(one) for one in tensors])

    monkeypatch.setattr(tiny_gguf, "write_gguf", write)
    return local_files(make_tiny_model(tmp_path, format="gguf", dtype="F32", family=family))


@pytest.mark.parametrize(
    ("files", "quantize"),
    [
        (("llama", "Q8_0"), "int8"),
        (("llama", "Q4_0"), "int4"),
        (("llama", "Q4_1"), "int4"),
        (("qwen3_moe", "Q8_0"), "int8"),
        (("mixtral", "Q4_0"), "int4"),
    ],
    indirect=["files"],
)
def test_blocks_are_not_rounded_again(files: ModelFiles, read: list[str], quantize: Any) -> None:
    done: list[float] = []
    card = loading.load_on_card(files, read_config(files), CPU, quantize, done.append)
    exact = load_decoder(files, device=CPU, dtype=torch.float32).parameters
    for layer, own in zip(exact.layers, card.layers, strict=True):
        for each in MATRICES:
            wanted, weight = getattr(layer, each).flatten(0, -2), getattr(own, each)
            found = unpack(weight, torch.full_like(wanted, torch.nan))
            torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-7)  # one rounding of a product and a sum
    assert not any(part in name for name in read for part in ("attn_q.", "ffn_down", "ffn_gate_exps", "ffn_up_exps"))
    assert all(
        (own.mixture is None) == (layer.router is None) for layer, own in zip(exact.layers, card.layers, strict=True)
    )
    assert any("attn_norm" in name for name in read)
    assert done == sorted(done)
    assert done[-1] == 1.0


@pytest.mark.parametrize("files", [("llama", "Q8_0"), ("mixtral", "Q8_0")], indirect=True)
def test_other_blocks_are_rounded_once(files: ModelFiles, read: list[str]) -> None:
    card = loading.load_on_card(files, read_config(files), CPU, "int4", lambda done: None)
    exact = load_decoder(files, device=CPU, dtype=torch.bfloat16).parameters
    for layer, own in zip(exact.layers, card.layers, strict=True):
        for each in MATRICES:
            weight, wanted = getattr(own, each), rounded(getattr(layer, each).flatten(0, -2), "int4")
            assert torch.equal(weight.codes, wanted.codes), each
    assert any("attn_q" in name for name in read)
