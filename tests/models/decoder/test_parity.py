"""Logits equal to transformers' on small random weights, in every family and with every feature."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from transformers import (
    Gemma2Config,
    Gemma3Config,
    Gemma3ForConditionalGeneration,
    Gemma3TextConfig,
    Glm4Config,
    GlmConfig,
    LlamaConfig,
    MistralConfig,
    MixtralConfig,
    Phi3Config,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
    SmolLM3Config,
)

from edgewise.models.decoder.config import read_config
from edgewise.models.tiny import local_files
from edgewise.models.tiny_families import FAMILIES, TINY_FAMILIES
from tests.accept import parity
from tests.accept.parity import logits_of
from tests.models.decoder.driver import Driver, load

TOLERANCE = 1e-4
LENGTH = 150
SMALL: dict[str, Any] = {
    "vocab_size": 300,
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.15,
    "pad_token_id": None,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def rope(kind: str, **more: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 10_000.0, **more}}


LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
YARN = {"factor": 4.0, "original_max_position_embeddings": 64}
SMOLLM2 = {"num_attention_heads": 9, "num_key_value_heads": 3, "hidden_size": 144, "intermediate_size": 384}
QWEN_WINDOWS = {"use_sliding_window": True, "sliding_window": 30, "max_window_layers": 1}
# Deep enough for every kind of layer: windows, no rotation, experts.
GEMMA = {"head_dim": 24, "sliding_window": 20, "query_pre_attn_scalar": 30, "num_hidden_layers": 4}
EXPERTS = {"num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 40, "head_dim": 16}
LONGROPE = {
    "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7],
    "long_factor": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0],
}
CASES: dict[str, tuple[type[Any], dict[str, Any]]] = {
    "llama": (LlamaConfig, {}),
    "llama-mha": (LlamaConfig, {"num_key_value_heads": 4}),
    "llama-biases": (LlamaConfig, {"attention_bias": True, "mlp_bias": True}),
    "llama-head-dim": (LlamaConfig, {"head_dim": 24}),
    "llama-linear": (LlamaConfig, rope("linear", factor=3.0)),
    "llama-llama3": (LlamaConfig, rope("llama3", **LLAMA3)),
    "llama-yarn": (LlamaConfig, rope("yarn", **YARN)),
    "llama-yarn-factor": (LlamaConfig, rope("yarn", **YARN, attention_factor=0.7, beta_fast=8.0, truncate=False)),
    "llama-yarn-mscale": (LlamaConfig, rope("yarn", **YARN, mscale=1.2, mscale_all_dim=0.6)),
    "smollm2": (LlamaConfig, {**SMOLLM2, "tie_word_embeddings": True, "rms_norm_eps": 1e-5, **rope("default")}),
    "mistral": (MistralConfig, {"sliding_window": None}),
    "mistral-window": (MistralConfig, {"sliding_window": 40}),
    "mistral-head-dim": (MistralConfig, {"sliding_window": 7, "head_dim": 32}),
    "qwen2": (Qwen2Config, {}),
    "qwen2-tied-yarn": (Qwen2Config, {"tie_word_embeddings": True, **rope("yarn", **YARN)}),
    "qwen2-windows": (Qwen2Config, QWEN_WINDOWS),
    "qwen2-seven-to-one": (Qwen2Config, {"num_attention_heads": 7, "num_key_value_heads": 1, "hidden_size": 112}),
    "qwen3": (Qwen3Config, {"head_dim": 32}),
    "qwen3-tied-bias": (Qwen3Config, {"head_dim": 16, "tie_word_embeddings": True, "attention_bias": True}),
    "qwen3-layer-types": (
        Qwen3Config,
        {
            "head_dim": 16,
            "use_sliding_window": True,
            "sliding_window": 20,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
    ),
    "smollm3": (SmolLM3Config, {"num_hidden_layers": 5}),
    "smollm3-windows": (
        SmolLM3Config,
        {"no_rope_layers": [1, 0, 1], "use_sliding_window": True, "sliding_window": 20, "attention_bias": True},
    ),
    "gemma2": (Gemma2Config, {**GEMMA, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 4.0}),
    "gemma2-uncapped": (Gemma2Config, {**GEMMA, "attn_logit_softcapping": None, "final_logit_softcapping": None}),
    "gemma3": (Gemma3TextConfig, {**GEMMA, "sliding_window_pattern": 3, "final_logit_softcapping": 4.0}),
    "gemma3-scaled": (
        Gemma3TextConfig,
        {
            **GEMMA,
            "layer_types": ["full_attention", "sliding_attention"] * 2,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            },
        },
    ),
    "phi3": (Phi3Config, {"sliding_window": 30}),
    "phi4": (Phi3Config, rope("default", partial_rotary_factor=0.75)),
    "glm": (GlmConfig, {"head_dim": 16}),
    "glm4": (Glm4Config, {"head_dim": 24, "attention_bias": True}),
    "mixtral": (MixtralConfig, {"num_local_experts": 5, "num_experts_per_tok": 2}),
    "mixtral-window": (MixtralConfig, {"num_local_experts": 4, "num_experts_per_tok": 1, "sliding_window": 25}),
    "qwen3-moe": (Qwen3MoeConfig, {**EXPERTS, "norm_topk_prob": True}),
    "qwen3-moe-sparse": (Qwen3MoeConfig, {**EXPERTS, "decoder_sparse_step": 2, "attention_bias": True}),
}


def reference(kind: type[Any], options: dict[str, Any], folder: Path) -> torch.nn.Module:
    """A random model, saved in `folder`."""
    return parity.reference(kind, {**SMALL, **options}, folder)


def assert_close(found: torch.Tensor, expected: torch.Tensor) -> None:
    assert expected.std() > 0.5  # large enough for the tolerance to mean something
    torch.testing.assert_close(found, expected, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("case", CASES)
def test_logits_equal_those_of_transformers(case: str, driver: Callable[..., Any], tmp_path: Path) -> None:
    model = reference(*CASES[case], tmp_path)
    drive = driver(local_files(tmp_path))
    chance = random.Random(case)
    prompts = [[chance.randrange(300) for _ in range(length)] for length in (LENGTH, 1, 31, 64, 90)]
    expected = [logits_of(model, prompt) for prompt in prompts]
    long = prompts[0]

    prefill = drive.whole(long)
    assert_close(prefill, expected[0])
    assert torch.equal(drive.chunked(long, [1] * 5 + [64, 7, 1, 40, 33]), prefill)

    # Ragged batches: prompts of unequal lengths, then all decode one token a step, at different positions.
    pages = [drive.pages(len(prompt)) for prompt in prompts]
    starts = [max(1, len(prompt) - 9) for prompt in prompts]
    batch = drive.step([(prompt[:n], 0, p) for prompt, n, p in zip(prompts, starts, pages, strict=True)])
    assert_close(batch, torch.cat([rows[:n] for rows, n in zip(expected, starts, strict=True)]))
    for ahead in range(9):
        live = [i for i, prompt in enumerate(prompts) if starts[i] + ahead < len(prompt)]
        at = {i: starts[i] + ahead for i in live}
        stepped = drive.step([(prompts[i][at[i] : at[i] + 1], at[i], pages[i]) for i in live])
        assert_close(stepped, torch.stack([expected[i][at[i]] for i in live]))

    # Prefix-cache hit: the first 64 tokens' pages were computed by another sequence, with another continuation.
    other = drive.pages(LENGTH)
    drive.step([(long[:64] + prompts[4][:20], 0, other)])
    shared = other[:4] + drive.pages(LENGTH - 64)
    assert torch.equal(drive.step([(long[64:], 64, shared)]), prefill[64:])


@settings(max_examples=14, deadline=None, derandomize=True)
@given(family=st.sampled_from(sorted(parity.SAMPLERS)), seed=st.integers(0, 1 << 20))
def test_any_shape_of_a_family_gives_the_logits_of_transformers(family: str, seed: int) -> None:
    kind, options = parity.SAMPLERS[family](random.Random(f"{family} {seed}"))
    found = parity.compare(family, kind, options, seed)
    assert found.difference <= TOLERANCE, found
    assert found.agreed >= found.continued - 1, found  # two tokens may be as likely as each other


@pytest.mark.parametrize(("served", "length"), [(None, 150), (64, 60)])
def test_longrope_follows_the_served_context(served: int | None, length: int, tmp_path: Path) -> None:
    """transformers chooses by the text: short divisors up to the original context, long ones beyond. So do we, for good."""
    options = {"original_max_position_embeddings": 64, **rope("longrope", **LONGROPE)}
    model = reference(Phi3Config, options, tmp_path)
    files = local_files(tmp_path)
    drive = Driver(load(files, config=read_config(files).served(served)))
    tokens = [random.Random(4).randrange(300) for _ in range(length)]
    assert_close(drive.whole(tokens), logits_of(model, tokens))


def test_text_part_of_a_gemma_that_also_sees_images(tmp_path: Path) -> None:
    text = {**SMALL, **GEMMA, "vocab_size": 300}
    vision = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = Gemma3Config(
        text_config=text,
        vision_config={**vision, "image_size": 28, "patch_size": 14},
        image_token_index=299,
        boi_token_index=297,
        eoi_token_index=298,
    )
    torch.manual_seed(1)
    model = Gemma3ForConditionalGeneration(config).eval()
    model.save_pretrained(tmp_path)
    tokens = [random.Random(4).randrange(290) for _ in range(100)]
    expected = logits_of(model, tokens)
    assert_close(Driver(load(local_files(tmp_path))).whole(tokens), expected)

    # Newer files have the two prefixes the other way round.
    path = tmp_path / "model.safetensors"
    swapped = {name.replace("language_model.model.", "model.language_model."): t for name, t in load_file(path).items()}
    save_file(swapped, path)
    assert_close(Driver(load(local_files(tmp_path))).whole(tokens), expected)


@pytest.mark.parametrize("family", [family for family in FAMILIES if TINY_FAMILIES[family].gguf])
def test_gguf_gives_what_safetensors_gives(
    family: str, driver: Callable[..., Any], tiny_model_factory: Callable[..., Any]
) -> None:
    sizes = {"family": family, "tie_embeddings": family in ("qwen2", "gemma2"), "layers": 4}
    if family != "phi3":  # whose heads are always the hidden size divided
        sizes["head_dim"] = 32
    tokens = [random.Random(1).randrange(512) for _ in range(60)]
    hf, gguf = (driver(tiny_model_factory(format=kind, **sizes)).whole(tokens) for kind in ("safetensors", "gguf"))
    assert torch.equal(hf, gguf)


def test_older_configuration_form_gives_the_same_logits(driver: Callable[..., Any], tmp_path: Path) -> None:
    """transformers 4 wrote rope_theta and rope_scaling."""
    model = reference(LlamaConfig, rope("llama3", **LLAMA3), tmp_path)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    parameters = config.pop("rope_parameters")
    config |= {"rope_theta": parameters.pop("rope_theta"), "rope_scaling": parameters}
    path.write_text(json.dumps(config))
    tokens = [random.Random(2).randrange(300) for _ in range(LENGTH)]
    assert_close(driver(local_files(tmp_path)).whole(tokens), logits_of(model, tokens))


@pytest.mark.parametrize(("dtype", "mean"), [(torch.bfloat16, 0.02), (torch.float16, 0.003)])
def test_16_bit_weights_stay_near_float32(
    dtype: torch.dtype, mean: float, driver: Callable[..., Any], tiny_model: Any
) -> None:
    tokens = [random.Random(1).randrange(512) for _ in range(100)]
    full, half = driver(tiny_model).whole(tokens), driver(tiny_model, dtype, kv_dtype=dtype).whole(tokens)
    assert half.dtype is torch.float32
    assert (full - half).abs().mean() < mean
    assert (full.argmax(-1) == half.argmax(-1)).float().mean() >= 0.97
