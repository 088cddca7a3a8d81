"""Decoders on the native kernels: equal to the reference in floats, to a reference that rounds alike in integers, and to
themselves to the bit in any batch, chunking, number of threads and instruction set."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, cast

import pytest
import torch
from safetensors.torch import load_file, save_file

from edgewise.core.errors import BadModelFile
from edgewise.kernels.native import library
from edgewise.models.decoder.config import read_config
from edgewise.models.decoder.loading import load_decoder
from edgewise.models.decoder.model import Decoder
from edgewise.models.decoder.native.formats import Quantize, layer_plans
from edgewise.models.decoder.native.loading import load_native
from edgewise.models.decoder.native.memory import native_weight_bytes, native_workspace_bytes
from edgewise.models.decoder.native.model import NativeDecoder
from edgewise.models.decoder.rounded import RoundedDecoder
from edgewise.models.files import ModelFiles
from edgewise.models.tiny import local_files, make_tiny_model
from edgewise.models.tiny_families import FAMILIES
from edgewise.models.tokenizer.load import load_tokenizer
from tests.models.decoder.driver import Driver, greedy

TOKENS = [(7 * place + place * place) % 500 for place in range(330)]
# Sizes that fill neither vectors, nor groups, nor panels: head size 40, inner size 200, hidden size 96.
UNEVEN = {"head_dim": 40, "heads": 6, "kv_heads": 2, "hidden": 96, "intermediate": 200}


@pytest.fixture(autouse=True)
def pool() -> Iterator[None]:
    library.set_threads(2)
    yield
    library.use_isa("")
    library.set_threads(1)


def native(files: ModelFiles, quantize: Quantize = "none", dtype: str = "float32", **options: Any) -> Driver:
    return driver(load_native(files, dtype=dtype, quantize=quantize), **options)


def driver(decoder: NativeDecoder | RoundedDecoder | Decoder, **options: Any) -> Driver:
    return Driver(cast("Decoder", decoder), **options)


def reference(files: ModelFiles) -> Decoder:
    return load_decoder(files, device=torch.device("cpu"), dtype=torch.float32)


def far(a: torch.Tensor, b: torch.Tensor) -> float:
    assert a.isfinite().all()
    return float((a - b).abs().max() / b.abs().max())


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_agrees_with_the_reference(family: str, tiny_model_factory: Callable[..., ModelFiles]) -> None:
    files = tiny_model_factory(family=family)
    assert far(native(files).whole(TOKENS), driver(reference(files)).whole(TOKENS)) < 1e-4


@pytest.mark.parametrize("family", ["llama", "phi3", "mixtral", "qwen3_moe"])
def test_gguf_files_agree_too(family: str, tiny_model_factory: Callable[..., ModelFiles]) -> None:
    """Rotating rows in pairs, fused matrices, and all experts of a layer in one tensor."""
    files = tiny_model_factory(family=family, format="gguf", dtype="F16")
    assert far(native(files).whole(TOKENS), driver(reference(files)).whole(TOKENS)) < 1e-4


def test_sizes_that_fill_no_vector_agree_too(tiny_model_factory: Callable[..., ModelFiles]) -> None:
    files = tiny_model_factory(**UNEVEN)
    assert far(native(files).whole(TOKENS), driver(reference(files)).whole(TOKENS)) < 1e-4


def test_bfloat16_weights_are_those_of_the_reference(tiny_model: ModelFiles) -> None:
    rounded = reference(tiny_model)
    for matrix in (rounded.parameters.embedding, rounded.parameters.head):
        matrix.copy_(matrix.bfloat16())
    for layer in rounded.parameters.layers:
        for matrix in layer.matrices():
            matrix.copy_(matrix.bfloat16())
    assert far(native(tiny_model, dtype="bfloat16").whole(TOKENS), driver(rounded).whole(TOKENS)) < 1e-4


@pytest.mark.parametrize("quantize", ["int8", "int4"])
@pytest.mark.parametrize("options", [{}, UNEVEN, {"family": "gemma3"}, {"family": "qwen2"}], ids=str)
def test_integers_are_near_a_reference_that_rounds_alike(
    quantize: Literal["int8", "int4"], options: dict[str, Any], tiny_model_factory: Callable[..., ModelFiles]
) -> None:
    """A state that differs in its last bit may round to the next code, so not to the bit; but far nearer than unrounded."""
    files = tiny_model_factory(**options)
    alike = driver(RoundedDecoder(reference(files), files, quantize)).whole(TOKENS)
    exact = driver(reference(files)).whole(TOKENS)
    got = native(files, quantize).whole(TOKENS)
    ours, rounding = float((got - alike).square().mean()), float((exact - alike).square().mean())
    assert ours < rounding / 10, (ours, rounding)


@pytest.mark.parametrize("kv_dtype", [torch.float32, torch.int8, torch.bfloat16])
@pytest.mark.parametrize(
    ("quantize", "family"),
    [("none", "gemma2"), ("int8", "llama"), ("int4", "gemma3"), ("int8", "qwen3_moe"), ("none", "mixtral")],
)
def test_same_bits_alone_batched_and_chunked(
    quantize: Quantize, family: str, kv_dtype: torch.dtype, tiny_model_factory: Callable[..., ModelFiles]
) -> None:
    drive = native(tiny_model_factory(family=family), quantize, kv_dtype=kv_dtype, num_pages=300)
    texts = [TOKENS[: 1 + 19 * place] for place in range(9)] + [TOKENS]
    alone = [drive.whole(text) for text in texts]
    assert torch.cat(alone).isfinite().all()
    pages = [drive.pages(len(text)) for text in texts]
    together = drive.step([(text, 0, p) for text, p in zip(texts, pages, strict=True)])
    assert torch.equal(together, torch.cat(alone))
    last = drive.step([(text[-1:], len(text) - 1, p) for text, p in zip(texts, pages, strict=True)])
    assert torch.equal(last, torch.stack([rows[-1] for rows in alone]))
    assert torch.equal(drive.chunked(TOKENS, [1, 2, 3, 4, 250, 5, 1, 1, 63]), alone[-1])


@pytest.mark.parametrize("quantize", ["none", "int8", "int4"])
def test_same_bits_on_any_threads_and_instruction_set(quantize: Quantize, tiny_model: ModelFiles) -> None:
    decoder = load_native(tiny_model, dtype="bfloat16", quantize=quantize)

    def bits() -> torch.Tensor:
        drive = driver(decoder, kv_dtype=torch.int8)
        return torch.cat((drive.chunked(TOKENS, [300, 28, 1, 1]), drive.whole(TOKENS[:5])))

    expected = bits()
    for threads in (1, 3, 8):
        library.set_threads(threads)
        assert torch.equal(bits(), expected), threads
    for isa in ("generic", *(["avx2"] if library.isa() == "avx512-vnni" else [])):
        library.use_isa(isa)
        assert torch.equal(bits(), expected), isa


def test_blocks_of_a_gguf_file_are_packed_without_loss(starter_files: ModelFiles) -> None:
    """Its matrices are Q4_1, queries and keys with rotating rows in pairs; the tied embedding is Q8_0."""
    exact, ours = reference(starter_files).parameters, load_native(starter_files, dtype="float32", quantize="int4").step
    assert torch.equal(ours.embedding.unpack(), exact.embedding)
    assert ours.head is ours.embedding
    for mine, theirs in zip(ours.layers[:3], exact.layers, strict=False):
        (qkv,) = mine.qkv
        assert torch.equal(qkv.unpack(), theirs.qkv)
        assert torch.equal(mine.output.unpack(), theirs.output)
        ((gate_up, down),) = mine.feed
        assert torch.equal(down.unpack(), theirs.down)
        gate, up = gate_up.unpack().view(-1, 2, 16, gate_up.cols).unbind(1)
        assert torch.equal(torch.cat((gate.flatten(0, 1), up.flatten(0, 1))), theirs.gate_up)


def test_the_starter_knows_the_capital_of_france(starter_files: ModelFiles) -> None:
    tokenizer = load_tokenizer(starter_files)
    question = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
    drive = native(starter_files, "int4", kv_dtype=torch.int8)
    assert tokenizer.decode(greedy(drive, tokenizer.encode(question), 7)) == "The capital of France is Paris."


@pytest.mark.parametrize("quantize", ["none", "int8", "int4"])
@pytest.mark.parametrize(
    "options",
    [{"family": "qwen2"}, UNEVEN, {"family": "gemma3", "tie_embeddings": True}, {"family": "mixtral"}],
    ids=str,
)
def test_the_ledgers_sum_is_what_is_resident(
    quantize: Quantize, options: dict[str, Any], tiny_model_factory: Callable[..., ModelFiles]
) -> None:
    files = tiny_model_factory(**options)
    config, step = read_config(files), load_native(files, dtype="bfloat16", quantize=quantize).step
    held = [step.embedding, step.head, *step.vectors]
    for layer in step.layers:
        held += [getattr(layer, name) for name in layer.__slots__]
    assert sum(sizes_of(held).values()) == native_weight_bytes(config, "bfloat16", quantize)


def sizes_of(held: Any) -> dict[int, int]:
    """Bytes by address of all tensors in nested tuples, fields of packed matrices included."""
    if isinstance(held, list | tuple):
        return {address: size for one in held for address, size in sizes_of(one).items()}
    tensor = held if isinstance(held, torch.Tensor) else getattr(held, "data", None)
    return {tensor.data_ptr(): tensor.nbytes} if isinstance(tensor, torch.Tensor) else {}


@pytest.mark.parametrize("family", ["llama", "gemma2", "qwen3_moe"])
def test_a_step_takes_no_more_than_the_workspace_that_is_booked(
    family: str, tiny_model_factory: Callable[..., ModelFiles]
) -> None:
    decoder = load_native(tiny_model_factory(family=family), dtype="float32", quantize="int8")
    drive = driver(decoder)
    drive.whole(TOKENS)
    drive.whole(TOKENS[:3])
    assert 0 < decoder.step.workspace_bytes() < native_workspace_bytes(decoder.config, len(TOKENS), 1)


def test_threads_beyond_the_processors_are_booked(
    tiny_model_factory: Callable[..., ModelFiles], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = read_config(tiny_model_factory())
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    library.set_threads(1)
    booked = native_workspace_bytes(config, 8, 1)
    library.set_threads(3)
    assert native_workspace_bytes(config, 8, 1) > booked


def test_wider_matrices_of_a_four_bit_file_keep_their_bits(tiny_model_factory: Callable[..., ModelFiles]) -> None:
    files = tiny_model_factory(format="gguf")
    stored = {name: "Q4_0" if "blk" in name else "F32" for name in read_config(files).encodings}
    stored |= {"blk.0.attn_v.weight": "Q6_K", "blk.1.ffn_down.weight": "Q8_0"}
    config = replace(read_config(files), encodings=stored)
    first, second = layer_plans(config, "float32", "int4")
    assert [one.format.name for one in first.qkv] == ["INT4_EVEN", "INT4_EVEN", "INT8_K16"]
    assert [one.format.name for one in second.qkv] == ["INT4_EVEN"]
    assert (first.down.format.name, second.down.format.name) == ("INT4_EVEN", "INT8")


def test_a_number_that_no_format_holds_is_a_damaged_file(tmp_path: Path) -> None:
    files = local_files(make_tiny_model(tmp_path))
    path = files.paths["model.safetensors"]
    tensors = load_file(path)
    tensors["model.layers.1.mlp.down_proj.weight"][3, 5] = torch.nan
    save_file(tensors, path)
    with pytest.raises(BadModelFile, match=r"'model\.layers\.1\.mlp\.down_proj\.weight' cannot be packed: row 3"):
        load_native(files, dtype="float32", quantize="int8")


def test_what_lies_outside_vocabulary_and_tables_is_refused(tiny_model: ModelFiles) -> None:
    drive = native(tiny_model)
    with pytest.raises(ValueError, match="tokens must be 0 to 511, got 512"):
        drive.step([([512], 0, [1])])
    with pytest.raises(ValueError, match="rope table of 512, got 600"):
        drive.step([([5], 600, list(range(1, 40)))])
