"""Files as most people have them, Q4_K_M and its like: blocks are packed without loss and multiplied as they are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Literal, cast

import numpy as np
import pytest
import torch

from edgewise.kernels.native import library
from edgewise.kernels.native.formats import WeightFormat
from edgewise.kernels.native.packed import PackedMatrix
from edgewise.models import tiny_gguf
from edgewise.models.decoder.config import read_config
from edgewise.models.decoder.loading import load_decoder
from edgewise.models.decoder.model import Decoder
from edgewise.models.decoder.native.formats import Quantize, layer_plans, stored_bits
from edgewise.models.decoder.native.loading import load_native
from edgewise.models.decoder.native.memory import native_weight_bytes, native_workspace_bytes
from edgewise.models.decoder.rounded import RoundedDecoder, RoundedFormat
from edgewise.models.files import ModelFiles
from edgewise.models.tiny import local_files, make_tiny_model
from edgewise.models.weights.ggml_blocks import BLOCKS
from edgewise.models.weights.write import StoredTensor, write_gguf
from tests.models.decoder.driver import Driver
from tests.models.decoder.k_blocks import encoded

TOKENS = [(7 * place + place * place) % 500 for place in range(200)]
SIZES = {"hidden": 256, "intermediate": 512, "heads": 4, "kv_heads": 2, "head_dim": 64, "layers": 2}
Kinds = dict[str, str]  # by the end of a tensor's name; the first that fits
Q4_K_M: Kinds = {"blk.0.attn_v": "Q6_K", "blk.0.ffn_down": "Q6_K", "token_embd": "Q6_K", "output.": "Q6_K", "": "Q4_K"}
Q5_K_M: Kinds = {"blk.0.attn_v": "Q6_K", "blk.0.ffn_down": "Q6_K", "token_embd": "Q6_K", "output.": "Q6_K", "": "Q5_K"}
FILES = {"Q4_K_M": (Q4_K_M, "int4"), "Q5_K_M": (Q5_K_M, "int8"), "Q6_K": ({"": "Q6_K"}, "int8")}


@pytest.fixture(autouse=True)
def pool() -> Iterator[None]:
    library.set_threads(2)
    yield
    library.use_isa("")
    library.set_threads(1)


@pytest.fixture
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> ModelFiles:
    """A tiny model whose matrices are in the blocks that the test's parameter names."""
    kinds = cast("Kinds", request.param)

    def write(path: Path, metadata: dict[str, str], tensors: list[StoredTensor]) -> None:
        write_gguf(path, metadata, [in_blocks(one) for one in tensors])

    def in_blocks(tensor: StoredTensor) -> StoredTensor:
        if len(tensor.shape) < 2:
            return tensor
        kind = next(kind for start, kind in kinds.items() if tensor.name.startswith(start))
        return tensor if kind == tensor.type else encoded(tensor, kind)

    monkeypatch.setattr(tiny_gguf, "write_gguf", write)
    return local_files(make_tiny_model(tmp_path, format="gguf", dtype="F32", **SIZES))


def reference(files: ModelFiles) -> Decoder:
    return load_decoder(files, device=torch.device("cpu"), dtype=torch.float32)


@pytest.mark.parametrize(
    ("stored", "quantize"), [(kinds, bits) for kinds, bits in FILES.values()], indirect=["stored"], ids=list(FILES)
)
def test_every_matrix_holds_the_files_numbers(stored: ModelFiles, quantize: RoundedFormat) -> None:
    """By the reference's own reading of the blocks."""
    assert stored_bits(read_config(stored))[0] == quantize
    exact, ours = (
        reference(stored).parameters,
        load_native(stored, dtype="float32", quantize=cast("Quantize", quantize)).step,
    )
    assert torch.equal(ours.embedding.unpack(), exact.embedding)
    assert torch.equal(ours.head.unpack(), exact.head)
    for mine, theirs in zip(ours.layers, exact.layers, strict=True):
        assert torch.equal(torch.cat([part.unpack() for part in mine.qkv]), theirs.qkv)
        assert torch.equal(mine.output.unpack(), theirs.output)
        ((gate_up, down),) = mine.feed
        assert torch.equal(down.unpack(), theirs.down)
        gate, up = gate_up.unpack().view(-1, 2, 16, gate_up.cols).unbind(1)
        assert torch.equal(torch.cat((gate.flatten(0, 1), up.flatten(0, 1))), theirs.gate_up)


@pytest.mark.parametrize(
    ("stored", "quantize"), [(kinds, bits) for kinds, bits in FILES.values()], indirect=["stored"], ids=list(FILES)
)
def test_all_that_is_lost_is_rounding_of_activations(stored: ModelFiles, quantize: RoundedFormat) -> None:
    """Against float32 over the numbers of the file; the decoder by which formats are judged loses the same."""
    exact = Driver(reference(stored)).whole(TOKENS)
    judged = Driver(cast("Decoder", RoundedDecoder(reference(stored), stored, quantize))).whole(TOKENS)
    decoder = load_native(stored, dtype="float32", quantize=cast("Quantize", quantize))
    drive = Driver(cast("Decoder", decoder))
    native = drive.whole(TOKENS)
    cost = float((judged - exact).square().mean())
    # a state that differs in its last bit may round to the next code, of which there are few here
    assert float((native - judged).square().mean()) < 0.25 * cost
    assert cost < 1e-3 * float(exact.square().mean())
    assert torch.equal(drive.chunked(TOKENS, [3, 150, 1, 1, 45]), native)


@pytest.mark.parametrize("stored", [Q4_K_M, Q5_K_M], indirect=True, ids=["Q4_K_M", "Q5_K_M"])
def test_same_bits_on_any_threads_and_instruction_set(stored: ModelFiles) -> None:
    decoder = load_native(stored, dtype="float32", quantize=stored_bits(read_config(stored))[0])

    def bits() -> torch.Tensor:
        drive = Driver(cast("Decoder", decoder), kv_dtype=torch.int8)
        return torch.cat((drive.chunked(TOKENS[:80], [60, 18, 1, 1]), drive.whole(TOKENS[:5])))

    expected = bits()
    for threads in (1, 3):
        library.set_threads(threads)
        assert torch.equal(bits(), expected), threads
    for isa in ("generic", *(["avx2"] if library.isa() == "avx512-vnni" else [])):
        library.use_isa(isa)
        assert torch.equal(bits(), expected), isa


@pytest.mark.parametrize("stored", [Q4_K_M], indirect=True, ids=["Q4_K_M"])
def test_plans_and_sums_of_the_ledger(stored: ModelFiles) -> None:
    config = read_config(stored)
    first, second = layer_plans(config, "float32", "int4")
    assert [one.format.name for one in first.qkv] == ["INT4_K", "INT4_K", "INT8_K16"]
    assert [one.format.name for one in second.qkv] == ["INT4_K"]
    assert [first.gate_up.format.name, first.down.format.name, second.down.format.name] == [
        "INT4_K",
        "INT8_K16",
        "INT4_K",
    ]
    both: tuple[Quantize, ...] = ("int4", "int8")
    for quantize in both:
        decoder = load_native(stored, dtype="float32", quantize=quantize)
        step = decoder.step
        matrices = packed_bytes_of([*step.layers, step.embedding, step.head])
        vectors = native_weight_bytes(config, "float32", quantize) - matrices
        assert 0 < vectors < matrices / 4
        Driver(cast("Decoder", decoder)).whole(TOKENS)
        assert decoder.step.workspace_bytes() < native_workspace_bytes(config, len(TOKENS), 1)


def packed_bytes_of(held: object) -> int:
    if isinstance(held, PackedMatrix):
        return held.data.nbytes
    if isinstance(held, list | tuple):
        return sum(map(packed_bytes_of, held))
    return packed_bytes_of([getattr(held, name) for name in getattr(held, "__slots__", ())])


@pytest.mark.parametrize("stored", [{"blk.0.ffn_up": "Q5_K", "": "Q4_K"}], indirect=True, ids=["mixed"])
def test_gate_and_up_of_different_blocks_are_rounded_as_before(stored: ModelFiles) -> None:
    config = read_config(stored)
    first, second = layer_plans(config, "float32", "int4")
    assert (first.gate_up.format.name, second.gate_up.format.name) == ("INT8", "INT4_K")
    first, _ = layer_plans(config, "float32", "int8")
    assert (first.gate_up.format.name, first.down.format.name) == ("INT8_ROTATED", "INT8_K")
    exact = Driver(reference(stored)).whole(TOKENS)
    found = Driver(cast("Decoder", load_native(stored, dtype="float32", quantize="int4"))).whole(TOKENS)
    assert float((found - exact).square().mean() / exact.square().mean()) < 1e-3


@pytest.mark.parametrize("quantize", ["int8", "int4"])
@pytest.mark.parametrize(
    "stored",
    [{"blk.0.ffn_up": "Q5_K", "": "Q4_K"}, {"blk.0.attn_v": "F32", "": "Q4_K"}],
    indirect=True,
    ids=["gate_up", "qkv"],
)
def test_what_one_product_rounds_is_judged_as_rounded(stored: ModelFiles, quantize: Literal["int8", "int4"]) -> None:
    """Where one part of a product has to be rounded, the others are as well, though their blocks alone would be taken over."""
    decoder = reference(stored)
    judged = RoundedDecoder(decoder, stored, quantize)
    native, mine = load_native(stored, dtype="float32", quantize=quantize).step.layers, decoder.parameters.layers
    for layer, rounded in zip(native, mine, strict=True):
        ((gate_up, _),) = layer.feed
        gate, up = gate_up.unpack().view(-1, 2, 16, gate_up.cols).unbind(1)
        together = (torch.cat((gate.flatten(0, 1), up.flatten(0, 1))), gate_up.format, rounded.gate_up)
        qkv = (torch.cat([part.unpack() for part in layer.qkv]), layer.qkv[0].format, rounded.qkv)
        for held, packed, matrix in (together, qkv):
            apart = (matrix - held).abs() > 1e-6  # a last bit may lead to the next code
            assert float(apart.float().mean()) < 2e-3
            assert (matrix.data_ptr() in judged._mode._rotated) == (packed is WeightFormat.INT8_ROTATED)


def test_a_mixed_file_keeps_the_legacy_blocks_too(tmp_path: Path) -> None:
    """What llama.cpp stores where columns are no multiple of 256: Q5_0 for Q4_K, Q5_1 for Q5_K, Q8_0 for Q6_K."""
    config = read_config(local_files(make_tiny_model(tmp_path, format="gguf", dtype="F16")))
    stored = {name: "Q4_K" if "blk" in name else "F32" for name in config.encodings}
    stored |= {"blk.0.attn_v.weight": "Q5_0", "blk.1.ffn_down.weight": "Q5_1", "blk.0.ffn_down.weight": "Q8_0"}
    first, second = layer_plans(replace(config, encodings=stored), "float32", "int4")
    assert (first.qkv[2].format.name, first.down.format.name, second.down.format.name) == ("INT8", "INT8", "INT8_MIN")


def test_the_encoders_are_near_what_they_encode() -> None:
    values = np.random.default_rng(1).standard_normal((4, 512)).astype(np.float32)
    for kind, most in (("Q4_K", 0.09), ("Q5_K", 0.05), ("Q6_K", 0.03)):
        raw = np.frombuffer(encoded(StoredTensor("x", (4, 512), "F32", values.tobytes()), kind).data, np.uint8)
        assert np.abs(BLOCKS[kind][2](raw).reshape(4, 512) - values).mean() < most
