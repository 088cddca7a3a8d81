from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edgewise.core.errors import BadModelFile, StorageError, UnsupportedModel
from edgewise.kernels.rope_parameters import RopeParameters
from edgewise.models.decoder.config import DecoderConfig, read_config
from edgewise.models.decoder.experts import Experts
from edgewise.models.files import ModelFiles

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 1000,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}
QWEN3 = {**LLAMA, "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "head_dim": 32}
MISTRAL = {**LLAMA, "architectures": ["MistralForCausalLM"], "model_type": "mistral"}
GGUF: dict[str, Any] = {
    "general.architecture": "llama",
    "llama.block_count": 2,
    "llama.context_length": 2048,
    "llama.embedding_length": 64,
    "llama.feed_forward_length": 128,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.rope.freq_base": 100000.0,
    "tokenizer.ggml.tokens": ["a", "b", "c"],
}


def test_defaults_are_those_of_transformers() -> None:
    config = DecoderConfig.from_hf(LLAMA)
    assert (config.head_dim, config.rms_eps, config.tied_embeddings) == (16, 1e-6, False)
    assert config.rope == RopeParameters(theta=10_000.0)
    assert config.windows == (None, None, None)
    assert not any((config.qkv_bias, config.output_bias, config.mlp_bias, config.qk_norm))
    without_kv = {key: value for key, value in LLAMA.items() if key != "num_key_value_heads"}
    assert DecoderConfig.from_hf(without_kv).num_kv_heads == 4
    assert DecoderConfig.from_hf({**LLAMA, "head_dim": None}).head_dim == 16
    assert DecoderConfig.from_hf(MISTRAL).windows == (4096,) * 3
    assert DecoderConfig.from_hf({**MISTRAL, "sliding_window": None}).windows == (None,) * 3
    assert DecoderConfig.from_hf({key: v for key, v in QWEN3.items() if key != "head_dim"}).head_dim == 128


def test_model_type_stands_in_for_architectures() -> None:
    bare = {key: value for key, value in QWEN3.items() if key != "architectures"}
    assert DecoderConfig.from_hf(bare).architecture == "qwen3"


def test_both_forms_of_rope_settings() -> None:
    scaling = {"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4}
    old = {**LLAMA, "rope_theta": 5e5, "rope_scaling": {**scaling, "original_max_position_embeddings": 128}}
    new = {**LLAMA, "rope_parameters": {**scaling, "rope_theta": 5e5, "original_max_position_embeddings": 128}}
    expected = RopeParameters(
        kind="llama3", theta=5e5, factor=8.0, original_max_position=128, low_freq_factor=1.0, high_freq_factor=4.0
    )
    assert DecoderConfig.from_hf(old).rope == DecoderConfig.from_hf(new).rope == expected
    legacy = {**LLAMA, "rope_theta": 1e4, "rope_scaling": {"type": "linear", "factor": 2.0}}
    assert DecoderConfig.from_hf(legacy).rope == RopeParameters(kind="linear", factor=2.0)


def test_yarn_derives_what_is_not_given() -> None:
    yarn = {"rope_type": "yarn", "original_max_position_embeddings": 128}
    rope = DecoderConfig.from_hf({**LLAMA, "rope_scaling": yarn}).rope
    assert rope.factor == 4.0
    assert rope.attention_factor == pytest.approx(1.1386294)


REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("GemmaForCausalLM", {"architectures": ["GemmaForCausalLM"]}),
    ("hidden_act", {"hidden_act": "gelu"}),
    ("quantization_config.*bitsandbytes", {"quantization_config": {"quant_method": "bitsandbytes"}}),
    ("partial_rotary_factor", {"partial_rotary_factor": 0.5}),
    ("rope_interleaved", {"rope_interleaved": True}),
    ("attn_logit_softcapping", {"attn_logit_softcapping": 50.0}),
    ("num_local_experts", {"num_local_experts": 8}),
    ("sliding_window", {"sliding_window": 128}),
    ("'dynamic'", {"rope_scaling": {"type": "dynamic", "factor": 2.0}}),
    ("full_attention", {"rope_parameters": {"full_attention": {"rope_type": "default"}}}),
    ("beta_fast", {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "beta_fast": 3.0}}),
    ("partial_rotary_factor", {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.25}}),
]


@pytest.mark.parametrize(("name", "change"), REFUSED)
def test_what_is_not_implemented_is_refused_by_name(name: str, change: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedModel, match=name):
        DecoderConfig.from_hf({**LLAMA, **change})


@pytest.mark.parametrize("kind", ["default", "mrope"])
def test_sections_of_rope_are_read_where_they_cover_the_angles(kind: str) -> None:
    def read(sections: Any, **more: Any) -> DecoderConfig:
        rope = {"type": kind, "mrope_section": sections, "rope_theta": 1e6, **more}
        return DecoderConfig.from_hf({**LLAMA, "rope_parameters": rope})

    half = DecoderConfig.from_hf(LLAMA).rotary_dim // 2
    good = [half - 4, 2, 2]
    assert read(good).rope.sections == tuple(good)
    assert read(good, mrope_interleaved=True).rope.interleaved
    for bad in ([half, 2, 2], [half - 4.5, 2.5, 2], [half - 2, 2]):
        with pytest.raises(BadModelFile, match="mrope_section"):
            read(bad)


def test_unsupported_architecture_says_what_is_supported() -> None:
    with pytest.raises(UnsupportedModel, match="LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM"):
        DecoderConfig.from_hf({**LLAMA, "architectures": ["CohereForCausalLM"]})
    with pytest.raises(UnsupportedModel, match="llama, qwen2, qwen3, smollm3, gemma2"):
        DecoderConfig.from_gguf({**GGUF, "general.architecture": "mamba"})


def family(name: str, **more: Any) -> dict[str, Any]:
    return {**LLAMA, "architectures": [f"{name}ForCausalLM"], **more}


def test_gemma3_files_leave_out_what_is_usual() -> None:
    """As the files on the hub do: only what differs from the class is written, and beside a vision part."""
    text = {
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "model_type": "gemma3_text",
        "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    }
    outer = {"architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3", "text_config": text}
    config = DecoderConfig.from_hf(outer)
    assert (config.architecture, config.num_heads, config.num_kv_heads, config.head_dim) == ("gemma3", 8, 4, 256)
    assert (config.vocab_size, config.max_position, config.tied_embeddings) == (262_208, 131_072, True)
    assert config.windows[:7] == (1024,) * 5 + (None, 1024)
    assert config.rope_of(5) == RopeParameters(kind="linear", theta=1e6, factor=8.0)
    assert config.rope_of(0) == RopeParameters(theta=1e4)
    assert config.attention_scale == 256**-0.5
    assert config.embedding_scale == 2560**0.5
    bare = {key: value for key, value in outer.items() if key != "architectures"}
    assert DecoderConfig.from_hf(bare | {"model_type": "gemma3"}) == config
    newer = {
        "rope_scaling": None,
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        },
    }
    assert DecoderConfig.from_hf(outer | {"text_config": text | newer}) == config


def test_gemma2_alternates_and_caps() -> None:
    config = DecoderConfig.from_hf(family("Gemma2", head_dim=32))
    assert config.windows == (4096, None, 4096)
    assert (config.attention_softcap, config.logit_softcap) == (50.0, 30.0)
    assert (config.activation, config.post_norms) == ("gelu_tanh", True)
    assert DecoderConfig.from_hf(family("Gemma2", attn_logit_softcapping=None)).attention_softcap is None


def test_smollm3_leaves_layers_unrotated() -> None:
    config = DecoderConfig.from_hf(family("SmolLM3", num_hidden_layers=8))
    assert [config.rope_of(layer) is None for layer in range(8)] == [False, False, False, True] * 2
    assert config.rope.theta == 2e6
    given = DecoderConfig.from_hf(family("SmolLM3", no_rope_layers=[0, 1, 1]))
    assert given.unrotated == {0}


@pytest.mark.parametrize("kind", ["longrope", "su", "yarn"])
def test_phi3_has_three_names_for_longrope(kind: str) -> None:
    sets = {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
    config = DecoderConfig.from_hf(
        family("Phi3", original_max_position_embeddings=128, rope_scaling={"type": kind, **sets})
    )
    assert config.rope.kind == "longrope"
    assert config.rope.attention_factor == pytest.approx(1.1338934)  # sqrt(1 + ln 4 / ln 128)
    assert config.rope.divisors == (2.0,) * 8
    assert config.served(128).rope.divisors == (1.0,) * 8
    assert (config.cache_variant, config.served(100).cache_variant) == ("longrope-long", "longrope-short")


def test_share_of_a_head_rotates() -> None:
    assert DecoderConfig.from_hf(family("Phi3", partial_rotary_factor=0.75)).rotary_dim == 12
    glm = DecoderConfig.from_hf(family("Glm4", head_dim=32))
    assert (glm.rotary_dim, glm.qkv_bias, glm.output_bias, glm.post_norms) == (16, True, False, True)
    nested = {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.25}}
    assert DecoderConfig.from_hf(family("Glm", head_dim=32, **nested)).rotary_dim == 8


def test_experts_and_the_layers_that_have_them() -> None:
    mixtral = DecoderConfig.from_hf(family("Mixtral", num_local_experts=8))
    assert mixtral.experts == Experts(count=8, per_token=2, ffn_size=128, normalised=True, layers=(True,) * 3)
    sparse = {"num_experts": 16, "decoder_sparse_step": 2, "moe_intermediate_size": 48, "num_hidden_layers": 6}
    qwen = DecoderConfig.from_hf(family("Qwen3Moe", **sparse, mlp_only_layers=[3]))
    assert qwen.experts is not None
    assert qwen.experts.layers == (False, True, False, False, False, True)
    assert (qwen.experts_of(0), qwen.experts_of(1)) == (None, qwen.experts)
    assert DecoderConfig.from_hf(family("Qwen3Moe", mlp_only_layers=[0, 1, 2])).experts is None


@pytest.mark.parametrize(
    ("name", "change", "found"),
    [
        ("Gemma3", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping"),
        ("Gemma2", {"hidden_activation": "gelu"}, "hidden_activation"),
        ("Gemma2", {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ("Gemma3", {"rope_parameters": {"rope_type": "default"}}, "rope_type"),
        ("Phi3", {"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "dynamic"),
        ("Mixtral", {"hidden_act": "gelu"}, "hidden_act"),
        ("SmolLM3", {"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
    ],
)
def test_families_refuse_what_they_do_not_know(name: str, change: dict[str, Any], found: str) -> None:
    with pytest.raises(UnsupportedModel, match=found):
        DecoderConfig.from_hf(family(name, **change))


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("Phi3", {"partial_rotary_factor": 1.5}),
        ("Phi3", {"partial_rotary_factor": 0.2}),
        ("Phi3", {"rope_scaling": {"type": "longrope", "short_factor": [1.0], "long_factor": [1.0] * 8}}),
        ("Phi3", {"rope_scaling": {"type": "longrope", "short_factor": [0.0] * 8, "long_factor": [1.0] * 8}}),
        ("Mixtral", {"num_local_experts": 2, "num_experts_per_tok": 3}),
        ("Qwen3Moe", {"mlp_only_layers": 3}),
        ("SmolLM3", {"no_rope_layers": [1, 2, 0]}),
        ("Gemma2", {"final_logit_softcapping": -1.0}),
        ("Gemma3", {"text_config": 3}),
        ("Gemma3", {"rope_parameters": {"full_attention": 3}}),
    ],
)
def test_impossible_values_of_families_are_bad_files(name: str, change: dict[str, Any]) -> None:
    with pytest.raises(BadModelFile):
        DecoderConfig.from_hf(family(name, **change))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("vocab_size", None),
        ("hidden_size", -1),
        ("hidden_size", True),
        ("num_hidden_layers", 10**9),
        ("num_attention_heads", "4"),
        ("num_key_value_heads", 3),
        ("head_dim", 15),
        ("max_position_embeddings", 0),
        ("max_position_embeddings", 2**40),
        ("rms_norm_eps", 0),
        ("rms_norm_eps", float("nan")),
        ("tie_word_embeddings", "yes"),
        ("rope_scaling", ["linear"]),
        ("rope_scaling", {"type": "linear"}),
        ("rope_scaling", {"type": "llama3", "factor": 2, "low_freq_factor": 4, "high_freq_factor": 4}),
        ("rope_theta", float("inf")),
    ],
)
def test_impossible_values_are_bad_files(key: str, value: Any) -> None:
    with pytest.raises(BadModelFile):
        DecoderConfig.from_hf({**LLAMA, key: value})


def test_window_kinds_are_checked() -> None:
    windows = {**QWEN3, "layer_types": ["sliding_attention", "full_attention", "full_attention"]}
    with pytest.raises(BadModelFile, match="use_sliding_window"):
        DecoderConfig.from_hf(windows)
    good = DecoderConfig.from_hf({**windows, "use_sliding_window": True, "sliding_window": 9})
    assert good.windows == (9, None, None)
    with pytest.raises(BadModelFile, match="layer_types"):
        DecoderConfig.from_hf({**QWEN3, "layer_types": ["full_attention"]})
    with pytest.raises(UnsupportedModel, match="chunked_attention"):
        DecoderConfig.from_hf({**QWEN3, "layer_types": ["chunked_attention"] * 3})


def test_gguf_metadata() -> None:
    config = DecoderConfig.from_gguf(GGUF)
    assert (config.vocab_size, config.head_dim, config.num_kv_heads, config.tied_embeddings) == (3, 16, 2, True)
    assert config.rope.theta == 100000.0
    shapes = {"token_embd.weight": (500, 64), "output.weight": (500, 64), "blk.0.attn_q.bias": (64,)}
    shaped = DecoderConfig.from_gguf(GGUF, tensors=shapes)
    assert (shaped.vocab_size, shaped.tied_embeddings, shaped.qkv_bias) == (500, False, True)
    assert DecoderConfig.from_gguf({**GGUF, "llama.attention.head_count_kv": (2, 2)}).num_kv_heads == 2


def gguf(arch: str, **more: Any) -> dict[str, Any]:
    plain = {key.replace("llama.", f"{arch}."): value for key, value in GGUF.items()} | {"general.architecture": arch}
    return plain | {f"{arch}.{key}": value for key, value in more.items()}


def test_gguf_families() -> None:
    moe = {"expert_count": 8, "expert_used_count": 2}
    mixtral = DecoderConfig.from_gguf(gguf("llama", **moe))
    assert mixtral.architecture == "mixtral"
    assert mixtral.experts == Experts(count=8, per_token=2, ffn_size=128, normalised=True, layers=(True, True))
    qwen = DecoderConfig.from_gguf(gguf("qwen3moe", **moe, expert_feed_forward_length=32))
    assert qwen.experts is not None
    assert (qwen.architecture, qwen.experts.ffn_size, qwen.qk_norm) == ("qwen3_moe", 32, True)
    gemma2 = DecoderConfig.from_gguf(gguf("gemma2"))
    assert gemma2.windows == (4096, None)
    assert (gemma2.attention_softcap, gemma2.logit_softcap, gemma2.embedding_scale) == (50.0, 30.0, 8.0)
    window = {"attention.sliding_window": 512}
    gemma3 = DecoderConfig.from_gguf(
        gguf("gemma3", **window, **{"rope.scaling.type": "linear", "rope.scaling.factor": 8.0})
    )
    assert (gemma3.windows, gemma3.attention_softcap) == ((512, 512), None)
    assert gemma3.rope_of(0) == RopeParameters(theta=1e4)
    assert gemma3.rope.factor == 8.0
    pattern = {"attention.sliding_window_pattern": (True, False)}
    assert DecoderConfig.from_gguf(gguf("gemma3", **window, **pattern)).windows == (512, None)
    assert DecoderConfig.from_gguf(gguf("gemma3")).windows == (None, None)
    assert DecoderConfig.from_gguf(gguf("smollm3", block_count=5)).unrotated == {3}
    glm = DecoderConfig.from_gguf(gguf("glm4", **{"rope.dimension_count": 8}))
    assert (glm.rotary_dim, glm.post_norms, glm.qkv_bias) == (8, True, True)
    assert DecoderConfig.from_gguf(gguf("phi3", **{"attention.sliding_window": 0})).windows == (None, None)


def test_gguf_attention_of_the_largest_gemmas_is_scaled_by_the_hidden_size() -> None:
    for arch, layers in (("gemma2", 46), ("gemma3", 62)):
        heads = {"attention.key_length": 128, "attention.value_length": 128, "attention.head_count": 8}
        large = DecoderConfig.from_gguf(gguf(arch, block_count=layers, **heads, **{"rope.dimension_count": 128}))
        assert large.attention_scale == (64 // 8) ** -0.5
        small = DecoderConfig.from_gguf(gguf(arch, block_count=26, **heads, **{"rope.dimension_count": 128}))
        assert small.attention_scale == 128**-0.5


def test_gguf_yarn_is_that_of_transformers() -> None:
    scaling = {"type": "yarn", "factor": 4.0, "original_context_length": 512}
    gguf = DecoderConfig.from_gguf({**GGUF, **{f"llama.rope.scaling.{key}": value for key, value in scaling.items()}})
    parameters = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512, "rope_theta": 1e5}
    hf = DecoderConfig.from_hf({**LLAMA, "max_position_embeddings": 2048, "rope_parameters": parameters})
    assert gguf.rope == hf.rope


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("expert_shared_count", 1),
        ("attention.sliding_window", 4096),
        ("attention.value_length", 8),
        ("rope.dimension_count", 8),
        ("rope.scaling.type", "longrope"),
        ("rope.scaling.factor", 2.0),
        ("attention.causal", False),
        ("attention.head_count", (4, 2)),
        ("logit_scale", 0.5),
    ],
)
def test_gguf_features_that_are_not_implemented_are_refused_by_name(key: str, value: Any) -> None:
    scaling = {"llama.rope.scaling.factor": 2.0} if key == "rope.scaling.type" else {}
    with pytest.raises(UnsupportedModel, match=key.replace(".", r"\.")):
        DecoderConfig.from_gguf({**GGUF, **scaling, f"llama.{key}": value})


def test_gguf_sizes_are_checked() -> None:
    for key in ("block_count", "embedding_length", "attention.head_count", "attention.layer_norm_rms_epsilon"):
        with pytest.raises(BadModelFile, match=key):
            DecoderConfig.from_gguf({name: value for name, value in GGUF.items() if name != f"llama.{key}"})


def folder(tmp_path: Path, text: str) -> ModelFiles:
    (tmp_path / "config.json").write_text(text)
    return ModelFiles(
        name="m", digest="sha256:0", format="safetensors", paths={"config.json": tmp_path / "config.json"}
    )


def test_read_config_of_both_formats(tiny_model_factory: Callable[..., ModelFiles], tmp_path: Path) -> None:
    assert read_config(folder(tmp_path, json.dumps(LLAMA))) == DecoderConfig.from_hf(LLAMA)
    tied = tiny_model_factory(format="gguf", tie_embeddings=True)
    loose = tiny_model_factory(format="gguf", tie_embeddings=False)
    assert read_config(tied).tied_embeddings
    assert not read_config(loose).tied_embeddings
    assert read_config(loose).vocab_size == 512


@pytest.mark.parametrize("text", ["", "[]", "{", "[" * 100_000, '{"a": "' + "x" * (5 << 20) + '"}'])
def test_read_config_refuses_what_is_no_object(text: str, tmp_path: Path) -> None:
    with pytest.raises(BadModelFile, match=r"config\.json"):
        read_config(folder(tmp_path, text))


def test_read_config_without_a_file(tmp_path: Path) -> None:
    files = folder(tmp_path, "{}")
    (tmp_path / "config.json").unlink()
    with pytest.raises(StorageError, match=r"config\.json: cannot be read"):
        read_config(files)
    with pytest.raises(BadModelFile, match="is missing"):
        read_config(ModelFiles(name="m", digest="", format="safetensors", paths={}))


def test_configuration_and_memory_need_no_torch() -> None:
    code = (
        "import sys, edgewise.models.decoder.config, edgewise.models.decoder.memory; sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
