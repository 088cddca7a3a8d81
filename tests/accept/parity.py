"""Random small models of many families, computed by Edgewise and by transformers: how far apart are the logits?

`FAMILIES` holds those that the decoder runs: a function from the number of configurations to that many `Comparison`s for each.
Families that run by other means have a table of the same kind (`tests.accept.longtail`).
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
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

from edgewise.models.tiny import local_files
from tests.models.decoder.driver import Driver, greedy, load

VOCAB = 300
LENGTH = 90
CONTINUED = 16
# Logits spread by about 1; float32 sums of some hundred terms in another order differ by a few 1e-6.
TOLERANCE = 1e-4

Options = dict[str, Any]
Sampler = Callable[[random.Random], tuple[type[Any], Options]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One model under both.

    Attributes:
        what: The configuration, for people.
        difference: Largest absolute difference of two logits.
        spread: Standard deviation of the logits.
        agreed: Tokens of the greedy continuation that are the same, of `continued`.
    """

    family: str
    what: str
    difference: float
    spread: float
    agreed: int
    continued: int

    @property
    def passed(self) -> bool:
        return self.difference <= TOLERANCE and self.spread > 0.3 and self.agreed == self.continued


def reference(kind: type[Any], options: Options, folder: Path, seed: int = 7) -> torch.nn.Module:
    """A random model of transformers with norms and biases away from their trivial values, saved in `folder`."""
    torch.manual_seed(seed)
    config = kind(**options)
    model: torch.nn.Module = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.add_(0.2 * torch.randn_like(parameter))  # around 1, or 0 where 1 is added to it
            elif name.endswith("bias"):
                parameter.normal_(0, 0.3)
    model.save_pretrained(folder)  # type: ignore[operator]
    return model


def logits_of(model: torch.nn.Module, tokens: list[int]) -> torch.Tensor:
    """[T, vocab] of one sequence."""
    with torch.no_grad():
        logits: torch.Tensor = model(torch.tensor([tokens]), use_cache=False).logits[0]
    return logits


def continued(model: torch.nn.Module, prompt: list[int], count: int) -> list[int]:
    """The likeliest continuation, every token computed from the whole text."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(logits_of(model, tokens)[-1].argmax()))
    return tokens[len(prompt) :]


def compare(family: str, kind: type[Any], options: Options, seed: int) -> Comparison:
    """A model with these options through the decoder: prefill in chunks, then greedy decoding over the cache."""
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        model = reference(kind, options, Path(folder), seed)
        drive = Driver(load(local_files(Path(folder))))
    prompt = [chance.randrange(VOCAB) for _ in range(LENGTH)]
    cut = chance.randrange(1, LENGTH)
    expected, found = logits_of(model, prompt), drive.chunked(prompt, [cut, LENGTH - cut])
    theirs, ours = continued(model, prompt, CONTINUED), greedy(drive, prompt, CONTINUED)
    return Comparison(
        family=family,
        what=", ".join(f"{key}={value}" for key, value in sorted(options.items()) if key not in _DULL),
        difference=(found - expected).abs().max().item(),
        spread=expected.std().item(),
        agreed=sum(a == b for a, b in zip(theirs, ours, strict=True)),
        continued=CONTINUED,
    )


# --- random configurations ---

_DULL = {"vocab_size", "initializer_range", "pad_token_id", "bos_token_id", "eos_token_id", "max_position_embeddings"}


def _sizes(chance: random.Random, *, own_head_dim: bool = True, tied: bool = True) -> Options:
    kv_heads, group = chance.choice([1, 2, 3]), chance.choice([1, 2, 3, 4])
    heads = kv_heads * group
    options: Options = {
        "vocab_size": VOCAB,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "hidden_size": heads * chance.choice([8, 12, 16]) * (2 if heads < 3 else 1),
        "intermediate_size": 8 * chance.randint(5, 16),
        "num_hidden_layers": chance.randint(2, 5),
        "max_position_embeddings": 256,
        "rms_norm_eps": chance.choice([1e-6, 1e-5]),
        "initializer_range": 0.15,
        "pad_token_id": None,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    if own_head_dim:
        options["head_dim"] = chance.choice([8, 16, 24, 32])
    if tied:
        options["tie_word_embeddings"] = chance.random() < 0.5
    return options


def _rope(chance: random.Random) -> Options:
    kind = chance.choice(["default", "linear", "llama3", "yarn"])
    more: dict[str, Options] = {
        "default": {},
        "linear": {"factor": 3.0},
        "llama3": {
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
        "yarn": {"factor": 4.0, "original_max_position_embeddings": 64},
    }
    return {"rope_parameters": {"rope_type": kind, "rope_theta": chance.choice([1e4, 1e6]), **more[kind]}}


def _window(chance: random.Random) -> int:
    return chance.randint(5, 60)


def _llama2(chance: random.Random) -> tuple[type[Any], Options]:
    options = _sizes(chance, own_head_dim=False, tied=False)
    return LlamaConfig, options | {"num_key_value_heads": options["num_attention_heads"]}


def _llama3(chance: random.Random) -> tuple[type[Any], Options]:
    biases = {"attention_bias": chance.random() < 0.3, "mlp_bias": chance.random() < 0.3}
    return LlamaConfig, {**_sizes(chance), **_rope(chance), **biases}


def _mistral(chance: random.Random) -> tuple[type[Any], Options]:
    return MistralConfig, {**_sizes(chance), "sliding_window": chance.choice([None, _window(chance)])}


def _qwen2(chance: random.Random) -> tuple[type[Any], Options]:
    windows = {"use_sliding_window": True, "sliding_window": _window(chance), "max_window_layers": chance.randint(0, 3)}
    return Qwen2Config, {**_sizes(chance, own_head_dim=False), **_rope(chance), **chance.choice([{}, windows])}


def _qwen3(chance: random.Random) -> tuple[type[Any], Options]:
    return Qwen3Config, {**_sizes(chance), **_rope(chance), "attention_bias": chance.random() < 0.3}


def _smollm3(chance: random.Random) -> tuple[type[Any], Options]:
    windows = {"use_sliding_window": chance.random() < 0.5, "sliding_window": _window(chance)}
    interval = {"no_rope_layer_interval": chance.randint(2, 4)}
    return SmolLM3Config, {**_sizes(chance, own_head_dim=False), **windows, **interval}


def _gemma2(chance: random.Random) -> tuple[type[Any], Options]:
    caps = {
        "attn_logit_softcapping": chance.choice([None, 2.0, 50.0]),
        "final_logit_softcapping": chance.choice([None, 4.0, 30.0]),
    }
    return Gemma2Config, {**_gemma(chance), **caps}


def _gemma3(chance: random.Random) -> tuple[type[Any], Options]:
    scaled = {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6}
    ropes = {
        "full_attention": chance.choice([{"rope_type": "default", "rope_theta": 1e6}, scaled]),
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    }
    return Gemma3TextConfig, {
        **_gemma(chance),
        "num_hidden_layers": chance.randint(3, 7),
        "sliding_window_pattern": chance.randint(2, 6),
        "rope_parameters": ropes,
    }


def _gemma(chance: random.Random) -> Options:
    return {**_sizes(chance), "sliding_window": _window(chance), "query_pre_attn_scalar": chance.choice([8, 20, 32])}


def _phi3(chance: random.Random) -> tuple[type[Any], Options]:
    options = _sizes(chance, own_head_dim=False)
    options["sliding_window"] = chance.choice([None, _window(chance)])
    if chance.random() < 0.6:
        angles = options["hidden_size"] // options["num_attention_heads"] // 2
        options["original_max_position_embeddings"] = chance.choice([48, 256])
        options["rope_parameters"] = {
            "rope_type": "longrope",
            "rope_theta": 1e4,
            "short_factor": [1.0 + 0.1 * i for i in range(angles)],
            "long_factor": [1.0 + 0.9 * i for i in range(angles)],
        }
    return Phi3Config, options


def _phi4(chance: random.Random) -> tuple[type[Any], Options]:
    rope = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": chance.choice([0.5, 0.75])}
    options = _sizes(chance, own_head_dim=False)
    return Phi3Config, {**options, "hidden_size": 16 * options["num_attention_heads"], "rope_parameters": rope}


def _glm(chance: random.Random) -> tuple[type[Any], Options]:
    return GlmConfig, {**_sizes(chance), "attention_bias": chance.random() < 0.7, **_glm_rope(chance)}


def _glm4(chance: random.Random) -> tuple[type[Any], Options]:
    return Glm4Config, {**_sizes(chance), "attention_bias": chance.random() < 0.7, **_glm_rope(chance)}


def _glm_rope(chance: random.Random) -> Options:
    share = chance.choice([0.5, 1.0])
    return {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": share}}


def _mixtral(chance: random.Random) -> tuple[type[Any], Options]:
    experts = {"num_local_experts": chance.randint(2, 8), "num_experts_per_tok": chance.randint(1, 2)}
    return MixtralConfig, {**_sizes(chance), **experts, "sliding_window": chance.choice([None, _window(chance)])}


def _qwen3_moe(chance: random.Random) -> tuple[type[Any], Options]:
    return Qwen3MoeConfig, {
        **_sizes(chance),
        "num_experts": chance.randint(4, 12),
        "num_experts_per_tok": chance.randint(1, 4),
        "moe_intermediate_size": 8 * chance.randint(2, 6),
        "norm_topk_prob": chance.random() < 0.5,
        "decoder_sparse_step": chance.choice([1, 2]),
        "mlp_only_layers": chance.choice([[], [0]]),
    }


SAMPLERS: dict[str, Sampler] = {
    "Llama 2": _llama2,
    "Llama 3": _llama3,
    "Mistral": _mistral,
    "Qwen2.5": _qwen2,
    "Qwen3": _qwen3,
    "SmolLM3": _smollm3,
    "Gemma 2": _gemma2,
    "Gemma 3": _gemma3,
    "Phi-3": _phi3,
    "Phi-4": _phi4,
    "GLM-4 (Glm)": _glm,
    "GLM-4 (Glm4)": _glm4,
    "Mixtral": _mixtral,
    "Qwen3-MoE": _qwen3_moe,
}


def sampled(
    family: str, sampler: Sampler, compare: Callable[[str, type[Any], Options, int], Comparison]
) -> Callable[[int], list[Comparison]]:
    """A function that compares so many random configurations of a family."""

    def rows(count: int, first_seed: int = 1000) -> list[Comparison]:
        found = []
        for seed in range(first_seed, first_seed + count):
            kind, options = sampler(random.Random(f"{family} {seed}"))
            found.append(compare(family, kind, options, seed))
        return found

    return rows


FAMILIES: dict[str, Callable[[int], list[Comparison]]] = {
    family: sampled(family, sampler, compare) for family, sampler in SAMPLERS.items()
}
