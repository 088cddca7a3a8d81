"""Logits equal to transformers' on small random weights, in every family and with every feature."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config

from edgewise.models.tiny import local_files

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
}


def rope(kind: str, **more: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 10_000.0, **more}}


LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
YARN = {"factor": 4.0, "original_max_position_embeddings": 64}
SMOLLM2 = {"num_attention_heads": 9, "num_key_value_heads": 3, "hidden_size": 144, "intermediate_size": 384}
QWEN_WINDOWS = {"use_sliding_window": True, "sliding_window": 30, "max_window_layers": 1}
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
}


def reference(kind: type[Any], options: dict[str, Any], folder: Path) -> torch.nn.Module:
    """A random model, saved in `folder`."""
    torch.manual_seed(7)
    config = kind(**{**SMALL, **options})
    model: torch.nn.Module = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
        config, attn_implementation="eager"
    ).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.copy_(1 + 0.2 * torch.randn_like(parameter))
            elif name.endswith("bias"):
                parameter.normal_(0, 0.3)
    model.save_pretrained(folder)  # type: ignore[operator]
    return model


def logits_of(model: torch.nn.Module, tokens: list[int]) -> torch.Tensor:
    with torch.no_grad():
        logits: torch.Tensor = model(torch.tensor([tokens])).logits[0]
    return logits


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


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_gguf_gives_what_safetensors_gives(
    family: str, driver: Callable[..., Any], tiny_model_factory: Callable[..., Any]
) -> None:
    sizes = {"family": family, "head_dim": 32, "tie_embeddings": family == "qwen2"}
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
