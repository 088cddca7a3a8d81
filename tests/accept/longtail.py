"""Families that transformers runs over our pages, by the measure of `tests.accept.parity`: logits by the network itself, greedy
tokens by the real engine with several requests at once, prompts in chunks, and once more out of the prefix cache."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import Cohere2Config, GPTNeoXConfig, GraniteConfig, Olmo2Config, OlmoeConfig, Starcoder2Config

from edgewise.engine.build import build
from edgewise.engine.config import EngineConfig
from edgewise.engine.engine import Engine
from edgewise.engine.kv_cache import allocate
from edgewise.engine.request import GenerateRequest, SamplingParams
from edgewise.kernels.paging import PAGE_TOKENS, AttentionMeta
from edgewise.models.files import ModelFiles
from edgewise.models.longtail.network import load_network
from edgewise.models.tiny import local_files
from tests.accept.parity import (
    CONTINUED,
    LENGTH,
    VOCAB,
    Comparison,
    Options,
    Sampler,
    continued,
    logits_of,
    reference,
    sampled,
)

CPU = torch.device("cpu")
STEP_TOKENS = 32  # prompts of LENGTH tokens take three steps


def paged_logits(files: ModelFiles, tokens: list[int], cut: int) -> torch.Tensor:
    """[T, vocab] of one sequence, prefilled in two chunks."""
    network = load_network(files, device=CPU, dtype=torch.float32)
    pages = -(-len(tokens) // PAGE_TOKENS)
    kv = allocate(network.config, num_pages=pages + 1, kv_dtype="float32", dtype="float32", device=CPU)
    parts = []
    for first, last in ((0, cut), (cut, len(tokens))):
        positions = torch.arange(first, last)
        meta = AttentionMeta(
            query_lens=(last - first,),
            context_lens=(last,),
            positions=positions,
            slots=positions + PAGE_TOKENS,
            block_tables=torch.arange(1, pages + 1, dtype=torch.int32).unsqueeze(0),
        )
        parts.append(network.logits(network.forward(torch.tensor(tokens[first:last]), kv, meta)))
    return torch.cat(parts)


def engine_of(files: ModelFiles, **changes: Any) -> Engine:
    options: dict[str, Any] = {"kv_memory_bytes": 1 << 24, "max_step_tokens": STEP_TOKENS, **changes}
    config = EngineConfig(model=files, device="cpu", threads=1, dtype="float32", kv_dtype="float32", **options)
    return build(config, lambda _phase, _done: None)


def answers(engine: Engine, prompts: list[list[int]], count: int) -> tuple[list[list[int]], int]:
    """Greedy tokens of prompts that run at once, and how many prompt tokens came out of the prefix cache."""
    for index, prompt in enumerate(prompts):
        sampling = SamplingParams(max_tokens=count, temperature=0.0)
        engine.add(GenerateRequest(id=str(index), prompt=tuple(prompt), sampling=sampling))
    found: list[list[int]] = [[] for _ in prompts]
    cached = 0
    while engine.has_work:
        for chunk in engine.step():
            found[int(chunk.request_id)] += chunk.tokens
            cached += chunk.stats.cached_tokens if chunk.stats is not None else 0
    return found, cached


def compare(family: str, kind: type[Any], options: Options, seed: int) -> Comparison:
    """A model with these options under both."""
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        model = reference(kind, options, Path(folder), seed)
        files = local_files(Path(folder))
        prompts = [[chance.randrange(VOCAB) for _ in range(length)] for length in (LENGTH, 17, 40)]
        difference = paged_logits(files, prompts[0], chance.randrange(1, LENGTH)) - logits_of(model, prompts[0])
        engine = engine_of(files)
        first, _ = answers(engine, prompts, CONTINUED)
        second, cached = answers(engine, prompts, CONTINUED)
        engine.close()
    expected = [continued(model, prompt, CONTINUED) for prompt in prompts]
    agreed = sum(
        a == b
        for run in (first, second)
        for ours, theirs in zip(run, expected, strict=True)
        for a, b in zip(ours, theirs, strict=True)
    )
    return Comparison(
        family=family,
        what=", ".join(f"{key}={value}" for key, value in sorted(options.items())),
        difference=difference.abs().max().item(),
        spread=logits_of(model, prompts[0]).std().item(),
        agreed=agreed if cached > 0 else 0,
        continued=2 * len(prompts) * CONTINUED,
    )


def _sizes(chance: random.Random) -> Options:
    kv_heads = chance.choice([1, 2])
    heads = kv_heads * chance.choice([1, 2, 3])
    return {
        "vocab_size": VOCAB,
        "hidden_size": heads * chance.choice([16, 24]) * (2 if heads < 3 else 1),
        "intermediate_size": 8 * chance.randint(5, 16),
        "num_hidden_layers": chance.randint(2, 4),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "max_position_embeddings": 256,
        "initializer_range": 0.15,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }


def _gpt_neox(chance: random.Random) -> tuple[type[Any], Options]:
    options = {key: value for key, value in _sizes(chance).items() if key != "num_key_value_heads"}
    rope = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": chance.choice([0.25, 0.5])}
    return GPTNeoXConfig, {**options, "use_parallel_residual": chance.random() < 0.7, "rope_parameters": rope}


def _granite(chance: random.Random) -> tuple[type[Any], Options]:
    multipliers = {
        "embedding_multiplier": chance.choice([1.0, 6.0]),
        "attention_multiplier": chance.choice([0.1, 0.4]),
        "residual_multiplier": chance.choice([0.3, 1.0]),
        "logits_scaling": chance.choice([0.5, 1.5]),
    }
    return GraniteConfig, {**_sizes(chance), **multipliers}


def _olmo2(chance: random.Random) -> tuple[type[Any], Options]:
    return Olmo2Config, _sizes(chance)


def _starcoder2(chance: random.Random) -> tuple[type[Any], Options]:
    return Starcoder2Config, {**_sizes(chance), "sliding_window": chance.choice([None, chance.randint(5, 60)])}


def _cohere2(chance: random.Random) -> tuple[type[Any], Options]:
    return Cohere2Config, {
        **_sizes(chance),
        "sliding_window": chance.randint(5, 60),
        "num_hidden_layers": 5,
        "logit_scale": 0.8,
    }


def _olmoe(chance: random.Random) -> tuple[type[Any], Options]:
    return OlmoeConfig, {**_sizes(chance), "num_experts": chance.randint(3, 8), "num_experts_per_tok": 2}


SAMPLERS: dict[str, Sampler] = {
    "GPT-NeoX": _gpt_neox,
    "Granite": _granite,
    "OLMo 2": _olmo2,
    "StarCoder2": _starcoder2,
    "Cohere2": _cohere2,
    "OLMoE": _olmoe,
}


LONG_TAIL: dict[str, Callable[[int], list[Comparison]]] = {
    f"{family} (transformers)": sampled(family, sampler, compare) for family, sampler in SAMPLERS.items()
}
