"""Quantized files: the same function before anything is rounded, near it afterwards, and better for having been calibrated."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from edgewise.core.errors import BadModelFile, UnsupportedModel
from edgewise.models.decoder.loading import load_decoder
from edgewise.models.decoder.native.loading import load_native
from edgewise.models.files import ModelFiles
from edgewise.models.quantize import file as module
from edgewise.models.quantize.energies import InputMeter, LayerEnergies
from edgewise.models.quantize.file import Part, QuantizedTo, quantized_bytes, require_quantizable, write_quantized
from edgewise.models.weights.gguf import header_of
from edgewise.models.weights.gguf_types import ENCODINGS
from tests.conftest import TinyModelFactory
from tests.models.decoder.driver import Driver

BLOCKS = {name: (elements, size) for name, elements, size in ENCODINGS.values()}
TOKENS = [(7 * place + place * place) % 500 for place in range(128)]
FAMILIES = ("llama", "qwen2", "gemma3", "phi3", "glm4")


def driver(files: ModelFiles) -> Driver:
    return Driver(load_decoder(files, device=torch.device("cpu"), dtype=torch.float32))


def measure(files: ModelFiles) -> list[LayerEnergies]:
    drive = driver(files)
    meter = InputMeter(drive.decoder.parameters.layers)
    with meter:
        drive.whole(TOKENS)
    return meter.energies()


def written(
    files: ModelFiles, folder: Path, to: QuantizedTo, energies: list[LayerEnergies], **options: object
) -> ModelFiles:
    out = folder / "made.gguf"
    write_quantized(files, out, to, energies, **options)  # type: ignore[arg-type]
    return replace(files, paths={"made.gguf": out})


def uneven(energies: list[LayerEnergies]) -> list[LayerEnergies]:
    """Columns of very different size, so that every scale is far from one."""

    def spread(energy: torch.Tensor) -> torch.Tensor:
        return energy * torch.exp(torch.randn(energy.shape, generator=torch.Generator().manual_seed(3)) * 2)

    return [LayerEnergies(*map(spread, (it.qkv, it.output, it.gate_up, it.down))) for it in energies]


@pytest.mark.parametrize("family", FAMILIES)
def test_scales_are_folded_without_a_trace(
    tiny_model_factory: TinyModelFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str
) -> None:
    files = tiny_model_factory(family=family, format="gguf")
    monkeypatch.setattr(module, "_plain_type", lambda _: "F32")
    monkeypatch.setitem(module.STRENGTH, "int8", 1.0)
    made = written(files, tmp_path, "int8", uneven(measure(files)))
    exact, got = driver(files), driver(made)
    assert not torch.allclose(exact.decoder.parameters.layers[0].down, got.decoder.parameters.layers[0].down, rtol=0.1)
    assert not torch.allclose(
        exact.decoder.parameters.layers[0].output, got.decoder.parameters.layers[0].output, rtol=0.1
    )
    before, after = exact.whole(TOKENS), got.whole(TOKENS)
    assert float((before - after).abs().max()) < 1e-4 * float(before.abs().max())


@pytest.mark.parametrize(("to", "matrix", "share"), [("int8", "Q8_0", 0.05), ("int4", "Q4_1", 0.5)])
def test_matrices_are_stored_in_that_form(
    tiny_model_factory: TinyModelFactory, tmp_path: Path, to: QuantizedTo, matrix: str, share: float
) -> None:
    files = tiny_model_factory(format="gguf")
    told: list[float] = []
    made = written(files, tmp_path, to, measure(files), progress=told.append)
    header = header_of(made)
    assert header.metadata.keys() == header_of(files).metadata.keys()
    kinds = {name: tensor.type for name, tensor in header.tensors.items()}
    assert kinds["blk.1.ffn_down.weight"] == kinds["blk.0.attn_q.weight"] == matrix
    assert (kinds["token_embd.weight"], kinds["blk.0.attn_norm.weight"]) == ("Q8_0", "F32")
    assert told == sorted(told)
    assert told[-1] == 1.0
    before, after = driver(files).whole(TOKENS), driver(made).whole(TOKENS)
    assert 0 < float((before - after).square().mean()) < share**2 * float(before.var())


def test_matrices_that_are_named_keep_eight_bits(tiny_model_factory: TinyModelFactory, tmp_path: Path) -> None:
    files = tiny_model_factory(format="gguf")
    made = written(files, tmp_path, "int4", measure(files), wide=("down", "qkv"))
    kinds = {name: tensor.type for name, tensor in header_of(made).tensors.items()}
    assert {kinds[f"blk.0.{name}.weight"] for name in ("ffn_down", "attn_q", "attn_v")} == {"Q8_0"}
    assert {kinds[f"blk.0.{name}.weight"] for name in ("ffn_up", "attn_output")} == {"Q4_1"}


def test_what_cannot_be_quantized_is_named(
    tiny_model: ModelFiles, tiny_model_factory: TinyModelFactory, tmp_path: Path
) -> None:
    with pytest.raises(UnsupportedModel, match="convert_hf_to_gguf"):
        require_quantizable(tiny_model, "int4")
    with pytest.raises(UnsupportedModel, match="experts"):
        require_quantizable(tiny_model_factory(family="mixtral", format="gguf"), "int8")
    files = tiny_model_factory(format="gguf")
    made = written(files, tmp_path, "int4", measure(files))
    with pytest.raises(UnsupportedModel, match="4 bits already"):
        require_quantizable(made, "int4")


def test_a_meter_sees_the_inputs_of_products(tiny_model: ModelFiles) -> None:
    drive = driver(tiny_model)
    layers = drive.decoder.parameters.layers
    meter = InputMeter(layers)
    with pytest.raises(ValueError, match="no product"):
        meter.energies()
    x = torch.randn(5, layers[0].down.shape[1])
    with meter:
        torch.nn.functional.linear(x, layers[0].down)
        for matrix in (layers[0].qkv, layers[0].output, layers[0].gate_up, *layers[1].matrices()):
            torch.nn.functional.linear(torch.ones(1, matrix.shape[1]), matrix)
    assert torch.allclose(meter.energies()[0].down, x.square().mean(0))


@pytest.mark.parametrize(("to", "wide"), [("int8", ()), ("int4", ()), ("int4", ("down",))])
def test_the_size_is_known_before(
    tiny_model_factory: TinyModelFactory, tmp_path: Path, to: QuantizedTo, wide: tuple[Part, ...]
) -> None:
    files = tiny_model_factory(format="gguf")
    made = written(files, tmp_path, to, measure(files), wide=wide)
    size = made.paths["made.gguf"].stat().st_size
    tensors = size - header_of(made).data_offset
    alignment = 32
    assert 0 <= tensors - quantized_bytes(files, to, wide) < alignment * len(header_of(made).tensors)


def spoiled(files: ModelFiles, folder: Path, tensor: str, row: int, value: bytes) -> ModelFiles:
    """A copy of a GGUF file whose tensor has these bytes at the start of a row."""
    header = header_of(files)
    info, (source,) = header.tensors[tensor], files.paths.values()
    elements, size = BLOCKS[info.type]
    content = bytearray(source.read_bytes())
    at = info.offset + row * math.prod(info.shape[1:]) // elements * size
    content[at : at + len(value)] = value
    out = folder / "spoiled.gguf"
    out.write_bytes(content)
    return replace(files, paths={out.name: out})


@pytest.mark.parametrize("to", ["int8", "int4"])
@pytest.mark.parametrize(("tensor", "row"), [("blk.0.ffn_down.weight", 17), ("blk.1.ffn_norm.weight", 5)])
@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
def test_a_value_that_is_not_finite_is_named(
    tiny_model_factory: TinyModelFactory, tmp_path: Path, to: QuantizedTo, tensor: str, row: int, value: float
) -> None:
    whole = tiny_model_factory(format="gguf")
    kind = np.float32 if header_of(whole).tensors[tensor].type == "F32" else np.float16
    files = spoiled(whole, tmp_path, tensor, row, kind(value).tobytes())
    for energies in (measure(whole), measure(files)):  # what a spoiled model measures spoils the scales of all
        with pytest.raises(BadModelFile, match=f"row {row} of the tensor '{tensor}'"):
            written(files, tmp_path, to, energies)


def test_blocks_whose_scale_is_not_finite_are_not_loaded(tiny_model_factory: TinyModelFactory, tmp_path: Path) -> None:
    whole = tiny_model_factory(format="gguf")
    made = written(whole, tmp_path, "int8", measure(whole))
    files = spoiled(made, tmp_path, "blk.1.attn_output.weight", 9, np.float16("nan").tobytes())
    load_native(made, dtype="float32", quantize="int8")
    with pytest.raises(
        BadModelFile, match=r"'blk.1.attn_output.weight' cannot be packed: row 9 has a scale or minimum"
    ):
        load_native(files, dtype="float32", quantize="int8")
