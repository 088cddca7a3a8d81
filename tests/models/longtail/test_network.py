"""Models that transformers runs over our pages: the same answers as without, exact sizes, every refusal by name."""

from __future__ import annotations

import importlib.util
import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from edgewise.core.errors import BadModelFile, UnsupportedModel
from edgewise.engine.networks import describe
from edgewise.kernels.paging import AttentionMeta
from edgewise.models.files import ModelFiles
from edgewise.models.longtail import network as network_module
from edgewise.models.longtail.estimate import read_network
from edgewise.models.longtail.network import TransformersNetwork, load_network
from edgewise.models.longtail.outline import is_longtail, read_outline
from edgewise.models.longtail.paged import PagedAttention
from edgewise.models.tiny import local_files
from tests.accept.longtail import SAMPLERS, compare, engine_of
from tests.models.longtail.models import save
from tests.models.weights.checkpoints import awq, config_of

CPU = torch.device("cpu")
ONE_TO_ONE = {"num_key_value_heads": None}  # families without grouped queries


@pytest.mark.parametrize("family", SAMPLERS)
def test_logits_and_greedy_tokens_are_those_of_transformers(family: str) -> None:
    """Through the real engine: several requests at once, prompts in chunks, a prefix hit."""
    kind, options = SAMPLERS[family](random.Random(f"{family} 1"))
    found = compare(family, kind, options, 1)
    assert found.passed, found


@pytest.fixture(scope="module")
def granite(tmp_path_factory: pytest.TempPathFactory) -> ModelFiles:
    return save(tmp_path_factory.mktemp("granite"), "granite", logits_scaling=2.0, attention_multiplier=0.2)


def test_the_engine_says_that_bits_depend_on_the_batch(granite: ModelFiles) -> None:
    engine = engine_of(granite)
    assert not engine.info.batch_invariant
    assert engine.info.vocab_size == 300
    assert engine.info.max_context == 256
    engine.close()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_16_bit_weights_pass_the_comparison_at_load(granite: ModelFiles, dtype: torch.dtype) -> None:
    network = load_network(granite, device=CPU, dtype=dtype)
    assert {parameter.dtype for parameter in network._body.parameters()} == {dtype}


@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("gpt_neox", ONE_TO_ONE),
        ("granite", {}),
        ("cohere2", {"sliding_window": 20, "num_hidden_layers": 4}),
        ("gpt2", ONE_TO_ONE),
        ("gpt_bigcode", ONE_TO_ONE),
        ("olmoe", {"num_experts": 4, "num_experts_per_tok": 2}),
    ],
)
def test_the_estimate_from_headers_is_close(family: str, options: dict[str, Any], tmp_path: Path) -> None:
    files = save(tmp_path, family, **options)
    guess, exact = read_network(files), describe(files)
    assert is_longtail(files)
    for name in ("vocab_size", "max_position", "kv_heads", "head_dims", "windows"):
        assert getattr(guess, name) == getattr(exact, name), name
    resident = resident_bytes(load_network(files, device=CPU, dtype=torch.float32))
    assert exact.weight_bytes("float32") == resident  # type: ignore[union-attr]
    assert guess.weight_bytes("float32") == pytest.approx(resident, rel=0.01, abs=70_000)  # type: ignore[union-attr]


def resident_bytes(network: TransformersNetwork) -> int:
    tensors = [each for part in (network._head, network._body) for each in (*part.parameters(), *part.buffers())]
    return sum({id(each): each.nbytes for each in tensors}.values())


def test_a_context_is_read_without_torch_or_transformers(granite: ModelFiles, tiny_model: ModelFiles) -> None:
    assert read_outline(granite).max_position == 256
    assert not is_longtail(tiny_model)


# --- weights ---


def changed(
    files: ModelFiles, folder: Path, change: Callable[[dict[str, torch.Tensor]], None], **config: Any
) -> ModelFiles:
    tensors = safetensors.torch.load_file(files.paths["model.safetensors"])
    change(tensors)
    safetensors.torch.save_file(tensors, folder / "model.safetensors")
    values = json.loads(files.paths["config.json"].read_text())
    (folder / "config.json").write_text(json.dumps({**values, **config}))
    return local_files(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tensors: tensors.pop("model.norm.weight"), r"'model\.norm\.weight' is missing"),
        (lambda tensors: tensors.update({"x.weight": torch.ones(2)}), r"'x\.weight' has no place"),
        (lambda tensors: tensors.update({"model.norm.weight": torch.ones(5)}), r"'model\.norm\.weight' is \(5,\)"),
    ],
)
def test_checkpoints_that_do_not_fit_are_named(
    change: Callable[[dict[str, torch.Tensor]], None], message: str, granite: ModelFiles, tmp_path: Path
) -> None:
    with pytest.raises(BadModelFile, match=message):
        load_network(changed(granite, tmp_path, change), device=CPU, dtype=torch.float32)


def test_a_tied_head_may_be_there_twice_but_not_differ(tmp_path: Path) -> None:
    (tmp_path / "tied").mkdir()
    (tmp_path / "same").mkdir()
    (tmp_path / "other").mkdir()
    files = save(tmp_path / "tied", "cohere", tie_word_embeddings=True)

    def repeat(tensors: dict[str, torch.Tensor]) -> None:
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()

    def differ(tensors: dict[str, torch.Tensor]) -> None:
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"] + 1

    load_network(changed(files, tmp_path / "same", repeat), device=CPU, dtype=torch.float32)
    with pytest.raises(BadModelFile, match="is tied to another tensor, and differs"):
        load_network(changed(files, tmp_path / "other", differ), device=CPU, dtype=torch.float32)


def test_quantized_checkpoints_are_read_by_our_reader(granite: ModelFiles, tmp_path: Path) -> None:
    values: dict[str, torch.Tensor] = {}

    def quantize(tensors: dict[str, torch.Tensor]) -> None:
        for name in [name for name in tensors if "_proj" in name]:
            shape = tensors.pop(name).shape
            stored, values[name] = awq(name.removesuffix(".weight"), (shape[0], shape[1]), group=16)
            tensors.update({key: tensor.contiguous() for key, tensor in stored.items()})

    files = changed(granite, tmp_path, quantize, quantization_config=config_of("awq", group_size=16))
    network = load_network(files, device=CPU, dtype=torch.float32)
    loaded = dict(network._body.named_parameters())
    assert values
    for name, value in values.items():
        assert torch.equal(loaded[name.removeprefix("model.")], value.float())


LOAD = """
import pathlib, sys
import torch
from edgewise.models.longtail.network import describe, load_network
from edgewise.models.tiny import local_files

def status(key):
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(key)) * 1024

files = local_files(pathlib.Path(sys.argv[1]))
weights = describe(files).weight_bytes("float32")
torch.ones(64, 64) @ torch.ones(64, 64)
before = status("VmRSS")
pathlib.Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts again
network = load_network(files, device=torch.device("cpu"), dtype=torch.float32)
print(status("VmHWM") - before, weights)
"""


def test_loading_peaks_at_little_more_than_the_weights(tmp_path: Path) -> None:
    save(tmp_path, "granite", vocab_size=24_000, hidden_size=768, intermediate_size=2048, num_hidden_layers=4)
    command = [sys.executable, "-W", "ignore", "-c", LOAD, str(tmp_path)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    peak, weights = map(int, done.stdout.split())
    assert weights > 150 << 20
    assert peak <= 1.15 * weights


# --- refusals ---

REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "state-space": ("mamba", {}, "MambaForCausalLM keeps recurrent state"),
    "sinks": ("gpt_oss", {"num_local_experts": 2, "num_experts_per_tok": 1}, "attention sinks"),
    "heads of two sizes": (
        "deepseek_v3",
        {"n_routed_experts": 4, "n_group": 1, "topk_group": 1, "num_experts_per_tok": 1, "first_k_dense_replace": 2}
        | {"kv_lora_rank": 16, "q_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 8},
        "not of one head size",
    ),
    "biases by distance": ("bloom", {}, "does not run through transformers' attention interface"),
    "angles that change": (
        "olmo2",
        {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}},
        "rope of the type 'dynamic'",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_pages_cannot_serve_is_refused_by_name(name: str, tmp_path: Path) -> None:
    family, options, message = REFUSED[name]
    with pytest.raises(UnsupportedModel, match=message):
        describe(save(tmp_path, family, **options))


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"architectures": ["NoSuchForCausalLM"]}, UnsupportedModel, "NoSuchForCausalLM is no causal language model"),
        ({"architectures": ["T5ForConditionalGeneration"]}, UnsupportedModel, "is no causal language model"),
        ({"architectures": ["A", "B"]}, UnsupportedModel, "must name one class"),
        ({"auto_map": {"AutoModelForCausalLM": "modeling.X"}}, UnsupportedModel, "'auto_map' names code"),
        ({"is_encoder_decoder": True}, UnsupportedModel, "is_encoder_decoder"),
        ({"quantization_config": {"quant_method": "mxfp4"}}, UnsupportedModel, "'mxfp4'"),
        ({"max_position_embeddings": None}, BadModelFile, "max_position_embeddings"),
        ({"max_position_embeddings": "long"}, BadModelFile, "'max_position_embeddings' is 'long'"),
        ({"hidden_size": "wide"}, BadModelFile, "hidden_size"),
    ],
)
def test_configurations_are_refused_by_name(
    change: dict[str, Any], error: type[Exception], message: str, granite: ModelFiles, tmp_path: Path
) -> None:
    with pytest.raises(error, match=message):
        describe(changed(granite, tmp_path, lambda tensors: None, **change))


def test_without_transformers_the_remedy_is_named(granite: ModelFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UnsupportedModel, match=r"pip install 'edgewise\[transformers\]'"):
        describe(granite)


def test_attention_that_is_not_the_models_own_fails_the_comparison(
    granite: ModelFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    attend = PagedAttention.attend

    def biased(self: PagedAttention, module: Any, query: Any, key: Any, value: Any, *rest: Any, **more: Any) -> Any:
        return attend(self, module, query, key, 2 * value, *rest, **more)

    monkeypatch.setattr(PagedAttention, "attend", biased)
    with pytest.raises(UnsupportedModel, match="differs from its own attention"):
        load_network(granite, device=CPU, dtype=torch.float32)


def test_batches_that_do_not_agree_are_refused(granite: ModelFiles) -> None:
    network = load_network(granite, device=CPU, dtype=torch.float32)
    positions = torch.arange(3)
    meta = AttentionMeta((3,), (3,), positions, positions, torch.zeros(1, 1, dtype=torch.int32))
    with pytest.raises(ValueError, match="3 tokens and 2 layers expected"):
        network.forward(torch.arange(2), [], meta)


def test_code_that_comes_with_a_model_is_never_imported(granite: ModelFiles, tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    code = f"open({str(marker)!r}, 'w').close()\n"
    shutil.copy(granite.paths["model.safetensors"], tmp_path)
    (tmp_path / "modeling.py").write_text(code)
    values = json.loads(granite.paths["config.json"].read_text())
    values["auto_map"] = {"AutoConfig": "modeling.C", "AutoModelForCausalLM": "modeling.M"}
    (tmp_path / "config.json").write_text(json.dumps(values))
    with pytest.raises(UnsupportedModel, match="auto_map"):
        read_outline(local_files(tmp_path))
    assert network_module.__name__
    assert not marker.exists()
