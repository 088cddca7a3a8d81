"""AWQ, GPTQ and compressed-tensors checkpoints read as the tensors that they stand for, bit for bit."""

from __future__ import annotations

import importlib
import json
import tracemalloc
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from edgewise.core.errors import BadModelFile, UnsupportedModel
from edgewise.models.decoder.loading import load_decoder
from edgewise.models.files import ModelFiles
from edgewise.models.tiny import local_files
from edgewise.models.weights import packed as packed_module
from edgewise.models.weights.open import open_weights
from edgewise.models.weights.quantization import parse_quantization
from edgewise.models.weights.reader import Fp8Reader, WeightReader
from tests.models.weights.checkpoints import Made, Tensors, awq, compressed, config_of, fp8, gptq, save

SHAPE = (48, 160)  # outputs, inputs
GRIDS = {"tensor": (48, 160), "channel": (1, 160), "group": (1, 32)}

Case = tuple[Made, dict[str, Any]]


def cases() -> dict[str, Case]:
    made: dict[str, Case] = {}
    for group in (32, 160, -1):
        for v2 in (False, True):
            options: dict[str, Any] = {"group_size": group, "checkpoint_format": "gptq_v2" if v2 else "gptq"}
            made[f"gptq {options}"] = gptq("a", SHAPE, group=group, v2=v2), config_of("gptq", **options)
        made[f"awq {group}"] = awq("a", SHAPE, group=group), config_of("awq", group_size=group, version="GEMM")
    options = {"group_size": 32, "desc_act": True, "sym": False}
    made["gptq in order of activations"] = gptq("a", SHAPE, group=32, shuffled=True), config_of("gptq", **options)
    made["gptq without index"] = gptq("a", SHAPE, group=64, index=False), config_of("gptq", group_size=64)
    for strategy, block in GRIDS.items():
        extra: dict[str, Any] = {"strategy": strategy, **({"group_size": 32} if strategy == "group" else {})}
        for symmetric in (True, False):
            options = {**extra, "symmetric": symmetric}
            plain = compressed("a", SHAPE, bits=8, packed=False, block=block, symmetric=symmetric)
            made[f"int8 {options}"] = plain, config_of("int-quantized", **options)
            for bits in (4, 8):
                tensors = compressed("a", SHAPE, bits=bits, packed=True, block=block, symmetric=symmetric)
                config = config_of("pack-quantized", num_bits=bits, **options)
                if symmetric or strategy != "tensor":
                    made[f"packed {bits} {options}"] = tensors, config
        for dtype in (torch.float16, torch.float32):
            tensors = fp8("a", SHAPE, block=block, dtype=dtype)
            made[f"fp8 {extra} {dtype}"] = tensors, config_of("float-quantized", type="float", **extra)
    for method, block in (("fp8", (48, 160)), ("fbgemm_fp8", (1, 160))):
        made[method] = fp8("a", SHAPE, block=block, dtype=torch.float32), {"quant_method": method}
    parts, values = fp8("a", SHAPE, block=(20, 64), dtype=torch.float32)
    parts["a.weight_scale_inv"] = parts.pop("a.weight_scale")
    options = {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3", "weight_block_size": [20, 64]}
    made["fp8 in blocks"] = (parts, values), options
    parts, values = fp8("a", SHAPE, block=(48, 160), dtype=torch.float32)
    parts["a.weight_scale_inv"] = parts.pop("a.weight_scale").reshape(())
    made["fp8 with one scale"] = (parts, values), {"quant_method": "fp8", "weight_block_size": None}
    parts = {**parts, "a.activation_scale": torch.tensor(2.0)}
    made["fp8 with static activations"] = (parts, values), {"quant_method": "fp8", "activation_scheme": "static"}
    options = {"type": "float", "strategy": "block", "block_structure": [20, 64]}
    made["fp8 by blocks"] = fp8("a", SHAPE, block=(20, 64)), config_of("float-quantized", **options)
    return made


CASES = cases()


def read(reader: WeightReader, rows: tuple[int, int] = (0, SHAPE[0]), dtype: torch.dtype | None = None) -> torch.Tensor:
    types = {"F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32}
    out = torch.empty(rows[1] - rows[0], SHAPE[1], dtype=dtype or types[reader.tensors["a.weight"].type])
    reader.read_into("a.weight", out, first_row=rows[0])
    return out


def same(left: torch.Tensor, right: torch.Tensor) -> bool:
    """The same bits; the payload of a NaN aside (fp8 has some)."""
    return left.dtype == right.dtype and torch.equal(left.nan_to_num(nan=7.0), right.nan_to_num(nan=7.0))


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("piece", [1 << 18, 1 << 9])
def test_values_are_those_that_were_packed(
    name: str, piece: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed_module, "PIECE_ELEMENTS", piece)
    (tensors, expected), quantization = CASES[name]
    files = save(tmp_path, {**tensors, "norm.weight": torch.ones(3)}, quantization)
    with closing(open_weights(files)) as reader:
        assert set(reader.tensors) == {"a.weight", "norm.weight"}
        assert reader.tensors["a.weight"].shape == SHAPE
        whole = read(reader)
        assert same(whole, expected)
        for rows in ((0, 1), (3, 11), (47, 48), (13, 48)):
            assert same(read(reader, rows), whole[slice(*rows)])
        assert same(read(reader, dtype=torch.float32), whole.float())


@pytest.mark.parametrize("name", [name for name in CASES if "config_groups" in CASES[name][1]])
def test_compressed_tensors_computes_the_same(name: str) -> None:
    compressors = pytest.importorskip("compressed_tensors.compressors")
    quantization = pytest.importorskip("compressed_tensors.quantization")
    (tensors, expected), config = CASES[name]
    layout, weights = config["format"], config["config_groups"]["group_0"]["weights"]
    scheme = quantization.QuantizationScheme(
        targets=["Linear"], weights=quantization.QuantizationArgs(**weights), format=layout
    )
    compressor = compressors.BaseCompressor.get_value_from_registry(layout)
    state = {key.removeprefix("a."): tensor for key, tensor in tensors.items()}
    assert same(compressor.decompress(state, scheme)["weight"], expected)


def finite(made: Made) -> Made:
    """Without the two codes of e4m3 that are NaN."""
    tensors, values = made
    codes = tensors["a.weight"].view(torch.uint8)
    codes[(codes & 0x7F) == 0x7F] = 0x7E
    return tensors, values


@pytest.mark.parametrize("block", [(1, 160), (48, 160), (20, 160)])
def test_fp8_with_one_scale_for_a_row_is_handed_out_as_it_is(block: tuple[int, int], tmp_path: Path) -> None:
    tensors, _ = finite(fp8("a", SHAPE, block=block, dtype=torch.float32))
    options = {"type": "float", "strategy": "block", "block_structure": list(block)}
    with closing(open_weights(save(tmp_path, tensors, config_of("float-quantized", **options)))) as reader:
        assert isinstance(reader, Fp8Reader)
        for first, count in ((0, 48), (17, 9), (47, 1)):
            found = reader.read_fp8("a.weight", first, count)
            assert found is not None
            rows = slice(first, first + count)
            assert torch.equal(found[0].view(torch.uint8), tensors["a.weight"].view(torch.uint8)[rows])
            spread = tensors["a.weight_scale"].repeat_interleave(block[0], 0)[rows, 0]
            assert torch.equal(found[1], spread)
        assert reader.read_fp8("b.weight", 0, 1) is None


def test_fp8_with_one_scale_that_has_no_dimension_is_handed_out_too(tmp_path: Path) -> None:
    tensors, _ = finite(fp8("a", SHAPE, block=SHAPE, dtype=torch.float32))
    scale = tensors.pop("a.weight_scale").reshape(())
    with closing(
        open_weights(save(tmp_path, {**tensors, "a.weight_scale_inv": scale}, {"quant_method": "fp8"}))
    ) as reader:
        assert isinstance(reader, Fp8Reader)
        found = reader.read_fp8("a.weight", 7, 3)
        assert found is not None
        assert torch.equal(found[0].view(torch.uint8), tensors["a.weight"].view(torch.uint8)[7:10])
        assert torch.equal(found[1], scale.expand(3))


@pytest.mark.parametrize("activations", ["dynamic", "static"])
@pytest.mark.parametrize("block", [None, (20, 64)])
def test_the_parts_of_transformers_own_fp8_have_their_places(
    block: tuple[int, int] | None, activations: str, tmp_path: Path
) -> None:
    linear = importlib.import_module("transformers.integrations.finegrained_fp8").FP8Linear
    theirs = linear(SHAPE[1], SHAPE[0], block, activations).state_dict()
    assert ("activation_scale" in theirs) == (activations == "static")
    tensors, expected = fp8("a", SHAPE, block=block or SHAPE, dtype=torch.float32)
    theirs["weight"] = tensors["a.weight"]
    theirs["weight_scale_inv"] = tensors["a.weight_scale"].reshape(theirs["weight_scale_inv"].shape)
    options = {"quant_method": "fp8", "activation_scheme": activations, "weight_block_size": block and list(block)}
    with closing(open_weights(save(tmp_path, {f"a.{part}": it for part, it in theirs.items()}, options))) as reader:
        assert set(reader.tensors) == {"a.weight"}
        assert same(read(reader), expected)


@pytest.mark.parametrize("name", ["a.weight", "experts.up_proj"])
@pytest.mark.parametrize("kind", ["fp8", "float-quantized"])
def test_fp8_without_a_scale_is_not_handed_out_as_it_is(kind: str, name: str, tmp_path: Path) -> None:
    tensors, _ = fp8("b", SHAPE, block=SHAPE)
    tensors[name] = tensors["b.weight"].clone()
    options = {"quant_method": "fp8"} if kind == "fp8" else config_of(kind, type="float", strategy="tensor")
    message = rf"^model\.safetensors: the tensor '{name}' has F8_E4M3 without a scale; it is read of matrices 'NAME"
    with pytest.raises(BadModelFile, match=message):
        open_weights(save(tmp_path, tensors, options))


@pytest.mark.parametrize("name", ["fp8 by blocks", "fp8 in blocks", "int8 {'strategy': 'channel', 'symmetric': True}"])
def test_others_are_not(name: str, tmp_path: Path) -> None:
    (tensors, _), quantization = CASES[name]
    with closing(open_weights(save(tmp_path, tensors, quantization))) as reader:
        assert isinstance(reader, Fp8Reader)
        assert reader.read_fp8("a.weight", 0, 4) is None


@pytest.mark.parametrize("part", ["weight", "weight_scale"])
def test_fp8_that_is_not_finite_is_named(part: str, tmp_path: Path) -> None:
    tensors, _ = finite(fp8("a", SHAPE, block=(1, 160), dtype=torch.float32))
    tensors[f"a.{part}"].view(torch.uint8)[5] = 0xFF
    quantization = config_of("float-quantized", type="float", strategy="channel")
    with closing(open_weights(save(tmp_path, tensors, quantization))) as reader:
        assert isinstance(reader, Fp8Reader)
        assert reader.read_fp8("a.weight", 0, 5) is not None
        with pytest.raises(BadModelFile, match=r"'a\.weight' or its scale holds NaN or infinity in rows 4 to 7"):
            reader.read_fp8("a.weight", 4, 4)


def test_scales_of_activations_and_caches_are_left_out(tmp_path: Path) -> None:
    (tensors, _), quantization = CASES["int8 {'strategy': 'channel', 'symmetric': True}"]
    scales = {"a.input_scale": torch.ones(1), "self_attn.k_scale": torch.ones(1)}
    with closing(open_weights(save(tmp_path, {**tensors, **scales}, quantization))) as reader:
        assert set(reader.tensors) == {"a.weight"}


def test_targets_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    (tensors, _), quantization = CASES["awq 32"]
    with closing(open_weights(save(tmp_path, tensors, quantization))) as reader:
        for out, first in ((torch.empty(4, 9), 0), (torch.empty(4, 160), 45), (torch.empty(4, 160).int(), 0)):
            with pytest.raises(ValueError):
                reader.read_into("a.weight", out, first_row=first)


@pytest.mark.parametrize("kind", ["awq", "gptq", "int-quantized"])
def test_reading_needs_a_few_mib_whatever_the_size(kind: str, tmp_path: Path) -> None:
    outputs, inputs, group = 3072, 1024, 128
    words = (inputs, outputs // 8) if kind == "awq" else (inputs // 8, outputs)
    parts: Tensors = {
        "a.qweight": torch.randint(-(2**31), 2**31, words, dtype=torch.int32),
        "a.qzeros": torch.zeros(inputs // group, outputs // 8, dtype=torch.int32),
        "a.scales": torch.ones(inputs // group, outputs).half(),
    }
    options: dict[str, Any] = {"group_size": group}
    if kind == "int-quantized":
        parts = {"a.weight": torch.ones(outputs, inputs, dtype=torch.int8), "a.weight_scale": torch.ones(outputs, 1)}
        options = {"strategy": "channel"}
    out = torch.empty(outputs, inputs)  # 12 MiB
    with closing(open_weights(save(tmp_path, parts, config_of(kind, **options)))) as reader:
        tracemalloc.start()
        reader.read_into("a.weight", out)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 8 << 20


# --- refusals ---

CT = config_of("int-quantized", strategy="channel")
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "other method": (
        {"quant_method": "bitsandbytes"},
        "'bitsandbytes'; this build reads awq, gptq, compressed-tensors",
    ),
    "mxfp4": ({"quant_method": "mxfp4"}, "'mxfp4'"),
    "fp8 e5m2": ({"quant_method": "fp8", "fmt": "e5m2"}, "'fmt' is 'e5m2'"),
    "fp8 activations": ({"quant_method": "fp8", "activation_scheme": "none"}, "'activation_scheme' is 'none'"),
    "no method": ({}, "the method None"),
    "gptq 3 bits": (config_of("gptq") | {"bits": 3}, "'bits' is 3"),
    "gptq marlin": (config_of("gptq", checkpoint_format="marlin"), "'marlin'"),
    "gptq per module": (config_of("gptq", dynamic={"-:x": {}}), "'dynamic'"),
    "awq gemv": (config_of("awq", version="GEMV"), "'gemv'"),
    "awq without zeros": (config_of("awq", zero_point=False), "'zero_point' is False"),
    "ct nvfp4": ({**CT, "format": "nvfp4-pack-quantized"}, "'nvfp4-pack-quantized'"),
    "ct sparse": ({**CT, "sparsity_config": {"format": "sparse-24-bitmask"}}, "sparsity_config"),
    "ct rotated": ({**CT, "transform_config": {"x": 1}}, "transform_config"),
    "ct ordered": (config_of("int-quantized", actorder="group"), "'actorder' is 'group'"),
    "ct 4 bits unpacked": (config_of("int-quantized", num_bits=4), "'num_bits' is 4"),
    "ct strategy": (config_of("int-quantized", strategy="token"), "'token'"),
    "ct two kinds": (
        {**CT, "config_groups": {**CT["config_groups"], "g": {"weights": {"num_bits": 4}}}},
        "differ in their weights",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_read_is_refused_by_name(name: str) -> None:
    quantization, message = REFUSED[name]
    with pytest.raises(UnsupportedModel, match=message):
        parse_quantization({"quantization_config": quantization}, "config.json")


@pytest.mark.parametrize(
    "bad",
    [
        [],
        config_of("gptq", group_size=0),
        config_of("gptq", group_size="128"),
        config_of("awq", zero_point="yes"),
        config_of("gptq", checkpoint_format=7),
        {**CT, "config_groups": {}},
        {**CT, "config_groups": [1]},
        config_of("int-quantized", strategy="group"),
        config_of("float-quantized", type="float", strategy="block", block_structure=[0, 1]),
        {"quant_method": "fp8", "weight_block_size": [128]},
    ],
)
def test_impossible_values_are_named(bad: object) -> None:
    with pytest.raises(BadModelFile, match=r"^config\.json: 'quantization_config'"):
        parse_quantization({"quantization_config": bad}, "config.json")


def damaged(tensors: Tensors, name: str, tensor: torch.Tensor | None) -> Tensors:
    kept = {key: value for key, value in tensors.items() if key != name}
    return kept if tensor is None else {**kept, name: tensor}


@pytest.mark.parametrize(
    ("case", "part", "tensor"),
    [
        ("awq 32", "qzeros", None),
        ("awq 32", "scales", torch.ones(5, 47).half()),
        ("awq 32", "qweight", torch.zeros(160, 48, dtype=torch.int32)),
        ("awq 32", "scales", torch.ones(4, 48).half()),
        ("awq 32", "scales", torch.ones(5, 48, dtype=torch.float64)),
        ("gptq without index", "qweight", torch.zeros(20, 40, dtype=torch.int32)),
        ("gptq in order of activations", "g_idx", torch.zeros(159, dtype=torch.int32)),
        ("packed 4 {'strategy': 'channel', 'symmetric': False}", "weight_shape", torch.tensor([48, -160])),
        ("packed 4 {'strategy': 'channel', 'symmetric': False}", "weight_shape", None),
        (
            "packed 4 {'strategy': 'channel', 'symmetric': False}",
            "weight_zero_point",
            torch.zeros(48, 1).to(torch.int8),
        ),
        ("packed 4 {'strategy': 'channel', 'symmetric': False}", "weight_zero_point", None),
        ("int8 {'strategy': 'channel', 'symmetric': True}", "weight", torch.zeros(47, 160).to(torch.int8)),
        ("int8 {'strategy': 'channel', 'symmetric': True}", "weight", torch.zeros(48, 160)),
        ("fp8 by blocks", "weight_scale", torch.ones(9)),
    ],
)
def test_parts_that_do_not_belong_together_are_named(
    case: str, part: str, tensor: torch.Tensor | None, tmp_path: Path
) -> None:
    (tensors, _), quantization = CASES[case]
    files = save(tmp_path, damaged(tensors, f"a.{part}", tensor), quantization)
    with pytest.raises(BadModelFile, match=r"^model\.safetensors: the tensor 'a\."):
        open_weights(files)


def test_an_index_that_leads_nowhere_is_named(tmp_path: Path) -> None:
    (tensors, _), quantization = CASES["gptq in order of activations"]
    tensors = {**tensors, "a.g_idx": torch.full((160,), 5, dtype=torch.int32)}
    with (
        closing(open_weights(save(tmp_path, tensors, quantization))) as reader,
        pytest.raises(BadModelFile, match=r"^model\.safetensors: 'a\.g_idx' names a group outside 0 to 4"),
    ):
        read(reader)


# --- the decoder does not know ---


@pytest.mark.parametrize("kind", ["gptq", "awq", "int-quantized", "fp8"])
def test_a_decoder_loads_the_same_numbers(kind: str, tiny_model: ModelFiles, tmp_path: Path) -> None:
    tensors = safetensors.torch.load_file(tiny_model.paths["model.safetensors"])
    config = json.loads(tiny_model.paths["config.json"].read_text())
    stored: Tensors = {}
    plain: Tensors = {}
    for name, tensor in tensors.items():
        module = name.removesuffix(".weight")
        if "_proj" not in name:
            made: Made = {name: tensor}, tensor
        elif kind == "gptq":
            made = gptq(module, (tensor.shape[0], tensor.shape[1]), group=32)
        elif kind == "awq":
            made = awq(module, (tensor.shape[0], tensor.shape[1]), group=32)
        elif kind == "fp8":
            parts, values = fp8(module, (tensor.shape[0], tensor.shape[1]), block=(1 << 20, 1 << 20))
            scale = parts.pop(f"{module}.weight_scale").reshape(())
            made = {**parts, f"{module}.weight_scale_inv": scale, f"{module}.activation_scale": scale.clone()}, values
        else:
            shape = tensor.shape[0], tensor.shape[1]
            made = compressed(module, shape, bits=8, packed=False, block=(1, shape[1]))
        stored |= made[0]
        plain[name] = made[1].contiguous()
    options: dict[str, Any] = {"strategy": "channel"} if kind == "int-quantized" else {"group_size": 32}
    static = {"quant_method": "fp8", "activation_scheme": "static", "weight_block_size": None}
    (tmp_path / "q").mkdir()
    (tmp_path / "p").mkdir()
    quantized = save(tmp_path / "q", stored, static if kind == "fp8" else config_of(kind, **options), **config)
    safetensors.torch.save_file(plain, tmp_path / "p" / "model.safetensors")
    (tmp_path / "p" / "config.json").write_text(json.dumps(config))
    left, right = (
        load_decoder(files, device=torch.device("cpu"), dtype=torch.float32)
        for files in (quantized, local_files(tmp_path / "p"))
    )
    for one, other in zip(left.parameters.layers, right.parameters.layers, strict=True):
        assert same(one.qkv, other.qkv)
        assert same(one.down, other.down)
