from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from edgewise.core.errors import BadModelFile
from edgewise.models.decoder.config import DecoderConfig, read_config
from edgewise.models.decoder.loading import fill_decoder, load_decoder
from edgewise.models.files import ModelFiles
from edgewise.models.weights.open import open_weights
from edgewise.models.weights.reader import TensorInfo

CPU = torch.device("cpu")
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 30,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32,
}
FILES = ModelFiles(name="mine", digest="sha256:0", format="safetensors", paths={})


class TensorReader:
    """A `WeightReader` over tensors in memory."""

    def __init__(self, stored: Mapping[str, torch.Tensor]) -> None:
        self.stored = dict(stored)

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        return {name: TensorInfo(name, tuple(t.shape), "F32", t.nbytes) for name, t in self.stored.items()}

    def read_into(self, name: str, out: torch.Tensor, *, first_row: int = 0) -> None:
        assert out.is_contiguous()
        out.copy_(self.stored[name][first_row : first_row + out.shape[0]])

    def close(self) -> None:
        self.stored.clear()


def stored(tied: bool = False) -> dict[str, torch.Tensor]:
    prefix = "model.layers.0."
    shapes = {
        "model.embed_tokens.weight": (30, 16),
        prefix + "input_layernorm.weight": (16,),
        prefix + "self_attn.q_proj.weight": (16, 16),
        prefix + "self_attn.k_proj.weight": (8, 16),
        prefix + "self_attn.v_proj.weight": (8, 16),
        prefix + "self_attn.o_proj.weight": (16, 16),
        prefix + "post_attention_layernorm.weight": (16,),
        prefix + "mlp.gate_proj.weight": (24, 16),
        prefix + "mlp.up_proj.weight": (24, 16),
        prefix + "mlp.down_proj.weight": (16, 24),
        "model.norm.weight": (16,),
    } | ({} if tied else {"lm_head.weight": (30, 16)})
    generator = torch.Generator().manual_seed(0)
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def fill(tensors: dict[str, torch.Tensor], **changes: Any) -> Any:
    config = DecoderConfig.from_hf({**CONFIG, **changes})
    return fill_decoder(config, TensorReader(tensors), FILES, device=CPU, dtype=torch.float32)


def test_every_tensor_lands_in_its_place() -> None:
    tensors = stored()
    decoder = fill(tensors)
    (layer,) = decoder.parameters.layers
    part = "model.layers.0.self_attn."
    assert torch.equal(layer.qkv, torch.cat([tensors[f"{part}{x}_proj.weight"] for x in "qkv"]))
    gate_up = torch.cat([tensors[f"model.layers.0.mlp.{x}_proj.weight"] for x in ("gate", "up")])
    assert torch.equal(layer.gate_up, gate_up)
    assert torch.equal(layer.down, tensors["model.layers.0.mlp.down_proj.weight"])
    assert torch.equal(decoder.parameters.head, tensors["lm_head.weight"])


def test_small_chunks_give_the_same(tiny_model_factory: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    for options in ({}, {"format": "gguf", "dtype": "F16"}):
        files = tiny_model_factory(**options)
        one = load_decoder(files, device=CPU, dtype=torch.float32).parameters.layers[1]
        monkeypatch.setattr("edgewise.models.decoder.loading.CHUNK_BYTES", 1000)
        shares: list[float] = []
        other = load_decoder(files, device=CPU, dtype=torch.float32, progress=shares.append).parameters.layers[1]
        monkeypatch.undo()
        assert torch.equal(one.qkv, other.qkv)
        assert torch.equal(one.gate_up, other.gate_up)
        assert shares == sorted(shares)
        assert shares[-1] == 1.0
        assert len(shares) > 100


def test_a_missing_tensor_is_named() -> None:
    tensors = stored()
    del tensors["model.layers.0.mlp.up_proj.weight"]
    with pytest.raises(BadModelFile, match=r"mine: the tensor 'model\.layers\.0\.mlp\.up_proj\.weight' is missing"):
        fill(tensors)


def test_a_tensor_left_over_is_named() -> None:
    extra = {"model.layers.0.self_attn.q_proj.bias": torch.zeros(16), "model.layers.1.mlp.x": torch.zeros(1)}
    with pytest.raises(BadModelFile, match=r"'model\.layers\.0\.self_attn\.q_proj\.bias' and 1 others has no place"):
        fill(stored() | extra)


def test_a_wrong_shape_is_named() -> None:
    with pytest.raises(BadModelFile, match=r"k_proj\.weight' is \(16, 16\), the configuration says \(8, 16\)"):
        fill(stored() | {"model.layers.0.self_attn.k_proj.weight": torch.zeros(16, 16)})


def test_hostile_sizes_are_refused_before_anything_is_allocated() -> None:
    huge = {"vocab_size": 1 << 24, "hidden_size": 1 << 24, "num_attention_heads": 4096, "num_key_value_heads": 4096}
    with pytest.raises(BadModelFile, match="configuration says"):
        fill(stored(), **huge)


def test_old_buffers_are_no_fault() -> None:
    fill(stored() | {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(2)})


def test_a_repeated_tied_head_must_be_the_embedding() -> None:
    tensors = stored(tied=True)
    same = tensors | {"lm_head.weight": tensors["model.embed_tokens.weight"].clone()}
    assert fill(same, tie_word_embeddings=True).parameters.head is not None
    with pytest.raises(BadModelFile, match="differs from the embedding"):
        fill(stored(), tie_word_embeddings=True)
    with pytest.raises(BadModelFile, match=r"the tied 'lm_head\.weight' is"):
        fill(tensors | {"lm_head.weight": torch.zeros(29, 16)}, tie_word_embeddings=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_norms_stay_float32(dtype: torch.dtype, tiny_model_factory: Callable[..., Any]) -> None:
    files = tiny_model_factory(family="qwen3", head_dim=32)
    decoder = load_decoder(files, device=CPU, dtype=dtype)
    weights = load_file(files.paths["model.safetensors"])
    layer = decoder.parameters.layers[0]
    assert layer.qkv.dtype is dtype
    assert layer.qk_norm is not None
    prefix = "model.layers.0.self_attn."
    expected = [weights[f"{prefix}q_norm.weight"]] * 4 + [weights[f"{prefix}k_norm.weight"]] * 2
    assert torch.equal(layer.qk_norm, torch.stack(expected))


def test_gguf_rope_divisors_stretch_the_angles() -> None:
    """Llama 3's stretch lies in GGUF files as a tensor; it must be as good as the formula."""
    scaling = {"type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    hf = DecoderConfig.from_hf({**CONFIG, "rope_scaling": {**scaling, "original_max_position_embeddings": 16}})
    (formula,) = fill_decoder(hf, TensorReader(stored()), FILES, device=CPU, dtype=torch.float32).ropes.values()
    (plain,) = fill(stored()).ropes.values()
    divisors = plain.sin[1].asin() / formula.sin[1].asin()
    assert divisors.max() > 2
    tensors = stored() | {"rope_freqs.weight": divisors}
    config = DecoderConfig.from_hf(CONFIG)
    files = ModelFiles(name="mine", digest="sha256:0", format="gguf", paths={})
    renamed = {gguf_name(name): tensor for name, tensor in tensors.items()}
    (divided,) = fill_decoder(config, TensorReader(renamed), files, device=CPU, dtype=torch.float32).ropes.values()
    torch.testing.assert_close(divided.sin, formula.sin, rtol=0, atol=1e-5)
    with pytest.raises(BadModelFile, match="rope_freqs"):
        fill_decoder(
            config,
            TensorReader(renamed | {"rope_freqs.weight": torch.ones(3)}),
            files,
            device=CPU,
            dtype=torch.float32,
        )


PHI = {
    "general.architecture": "phi3",
    "phi3.block_count": 1,
    "phi3.context_length": 256,
    "phi3.embedding_length": 64,
    "phi3.feed_forward_length": 128,
    "phi3.attention.head_count": 4,
    "phi3.attention.head_count_kv": 2,
    "phi3.attention.layer_norm_rms_epsilon": 1e-5,
    "phi3.rope.scaling.original_context_length": 64,
    "phi3.rope.scaling.attn_factor": 1.5,
}


@pytest.mark.parametrize(("served", "divisors"), [(None, 4.0), (65, 4.0), (64, 2.0)])
def test_gguf_longrope_takes_one_of_two_tensors(
    served: int | None, divisors: float, tiny_model_factory: Callable[..., Any]
) -> None:
    files = tiny_model_factory(family="phi3", format="gguf", layers=1)
    with closing(open_weights(files)) as reader:
        tensors = {name: torch.empty(info.shape) for name, info in reader.tensors.items()}
        for name, out in tensors.items():
            reader.read_into(name, out)
    tensors |= {"rope_factors_short.weight": torch.full((8,), 2.0), "rope_factors_long.weight": torch.full((8,), 4.0)}
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    config = DecoderConfig.from_gguf(PHI, tensors=shapes).served(served)
    decoder = fill_decoder(config, TensorReader(tensors), files, device=CPU, dtype=torch.float32)
    (table,) = decoder.ropes.values()
    assert table.cos[0, 0].item() == 1.5
    assert (table.sin[1, 0] / 1.5).asin().item() == pytest.approx(1.0 / divisors, rel=1e-5)
    del tensors["rope_factors_short.weight"], tensors["rope_factors_long.weight"]
    with pytest.raises(BadModelFile, match="rope_factors"):
        fill_decoder(config, TensorReader(tensors), files, device=CPU, dtype=torch.float32)


def test_missing_expert_is_named(tiny_model_factory: Callable[..., Any]) -> None:
    files = tiny_model_factory(family="mixtral")
    tensors = load_file(files.paths["model.safetensors"])
    del tensors["model.layers.1.block_sparse_moe.experts.3.w2.weight"]
    with pytest.raises(BadModelFile, match=r"layers\.1\.block_sparse_moe\.experts\.3\.w2\.weight' is missing"):
        fill_decoder(read_config(files), TensorReader(tensors), files, device=CPU, dtype=torch.float32)


def test_gemma_norms_multiply_by_one_and_their_weight(tiny_model_factory: Callable[..., Any]) -> None:
    files = tiny_model_factory(family="gemma3")
    weights = load_file(files.paths["model.safetensors"])
    decoder = load_decoder(files, device=CPU, dtype=torch.float32)
    layer = decoder.parameters.layers[0]
    assert torch.equal(decoder.parameters.norm, weights["model.norm.weight"] + 1)
    assert layer.ffn_post_norm is not None
    assert torch.equal(layer.ffn_post_norm, weights["model.layers.0.post_feedforward_layernorm.weight"] + 1)


def gguf_name(name: str) -> str:
    pairs = {
        "model.layers.": "blk.",
        "model.embed_tokens": "token_embd",
        "model.norm": "output_norm",
        "lm_head": "output",
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
        "self_attn.o_proj": "attn_output",
        "self_attn.": "attn_",
        "mlp.": "ffn_",
        "_proj": "",
    }
    for old, new in pairs.items():
        name = name.replace(old, new)
    return name


PEAK = """
import json, pathlib, sys, torch
from edgewise.models.decoder.config import read_config
from edgewise.models.decoder.loading import load_decoder
from edgewise.models.decoder.memory import weight_bytes
from edgewise.models.decoder.parallel import ALONE, ProcessGroup
from edgewise.models.tiny import local_files

def status(key):
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(key)) * 1024

folder, dtype, devices = pathlib.Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
files = local_files(folder)
torch.zeros(10).bfloat16().float()
pathlib.Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts again
before = status("VmRSS")
place = ALONE if devices == 1 else ProcessGroup(devices - 1, devices)
decoder = load_decoder(files, device=torch.device("cpu"), dtype=getattr(torch, dtype), parallel=place)
print(json.dumps([status("VmHWM") - before, weight_bytes(read_config(files).shard(devices), dtype)]))
"""


@pytest.mark.parametrize(
    ("options", "dtype", "devices"),
    [
        ({"dtype": "F32", "shards": 3}, "bfloat16", 1),
        ({"format": "gguf", "dtype": "F16"}, "float32", 1),
        ({"format": "gguf", "dtype": "F16", "family": "mixtral", "layers": 2}, "float32", 1),
        ({"family": "glm4", "dtype": "F32"}, "bfloat16", 1),
        ({"dtype": "BF16"}, "float32", 2),  # one of two devices that hold a share each
        ({"format": "gguf", "dtype": "F16"}, "float32", 2),
    ],
)
def test_loading_peaks_at_little_more_than_the_weights(
    options: dict[str, Any], dtype: str, devices: int, tiny_model_factory: Callable[..., Any]
) -> None:
    sizes = {"hidden": 768, "layers": 6, "heads": 12, "kv_heads": 4, "intermediate": 3072}
    files = tiny_model_factory(**sizes | options)
    command = [sys.executable, "-c", PEAK, str(next(iter(files.paths.values())).parent), dtype, str(devices)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    peak, weights = json.loads(done.stdout)
    assert weights > 80 << 20
    assert peak <= 1.15 * weights
