"""Shapes of models that speed on a GPU is measured on, with random weights: speed does not depend on their values."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from edgewise.kernels.rope import rope_tables
from edgewise.models.decoder.config import DecoderConfig
from edgewise.models.decoder.model import Decoder
from edgewise.models.decoder.parameters import DecoderParameters, allocate
from edgewise.models.files import ModelFiles

_LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "torch_dtype": "bfloat16",
    "bos_token_id": 1,
    "eos_token_id": 2,
    "max_position_embeddings": 40960,
    "attention_bias": False,
    "mlp_bias": False,
    "rope_theta": 500000.0,
    "vocab_size": 128256,
    "num_key_value_heads": 8,
}

_EXPERTS: dict[str, Any] = {
    **_LLAMA,
    "tie_word_embeddings": False,
    "sliding_window": None,
}

SHAPES: dict[str, dict[str, Any]] = {
    "llama-1b": {
        **_LLAMA,
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "head_dim": 64,
        "tie_word_embeddings": True,
    },
    "llama-3b": {
        **_LLAMA,
        "hidden_size": 3072,
        "intermediate_size": 8192,
        "num_hidden_layers": 28,
        "num_attention_heads": 24,
        "head_dim": 128,
        "tie_word_embeddings": True,
    },
    "llama-8b": {
        **_LLAMA,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "head_dim": 128,
        "tie_word_embeddings": False,
    },
    # Layers of Qwen3-30B-A3B, a third of them: an engine books its weights beside those that are there already.
    "qwen3-moe-11b": {
        **_EXPERTS,
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "moe_intermediate_size": 768,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "vocab_size": 151936,
    },
    # Layers of Mixtral 8x7B, a quarter of them.
    "mixtral-12b": {
        **_EXPERTS,
        "architectures": ["MixtralForCausalLM"],
        "model_type": "mixtral",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "num_hidden_layers": 8,
        "num_attention_heads": 32,
        "head_dim": 128,
        "vocab_size": 32000,
    },
}


def config_of(shape: str, layers: int | None = None) -> DecoderConfig:
    """`layers`: fewer than the shape has, for checks."""
    fields = SHAPES[shape] if layers is None else {**SHAPES[shape], "num_hidden_layers": layers}
    return DecoderConfig.from_hf(fields)


def product_weights(config: DecoderConfig, batch: int = 1) -> int:
    """Weights that are read for one token of each of `batch` sequences: all matrices, the head among them, the table of
    embeddings not; of experts as many as so many tokens choose on average, if each is chosen as often as any."""
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    total = config.vocab_size * config.hidden_size
    for layer in range(config.num_layers):
        experts = config.experts_of(layer)
        inner = float(config.ffn_size)
        if experts is not None:
            met = experts.count * (1 - (1 - experts.per_token / experts.count) ** batch)
            inner = met * experts.ffn_size
            total += experts.count * config.hidden_size
        total += int(config.hidden_size * (2 * queries + 2 * keys + 3 * inner))
    return total


def random_decoder(config: DecoderConfig, device: torch.device, seed: int = 0) -> Decoder:
    """Weights of standard deviation 1 / sqrt(in), so that states stay of one size; norms of ones."""
    parameters = allocate(config, torch.bfloat16, device)
    generator = torch.Generator(device).manual_seed(seed)
    for tensor in _tensors(parameters):
        if tensor.dtype == torch.float32:
            tensor.fill_(1.0)
        else:
            tensor.normal_(0.0, tensor.shape[-1] ** -0.5, generator=generator)
    assert config.rope is not None
    tables = rope_tables(config.rope, config.rotary_dim, config.max_position, device=device)
    return Decoder(config, parameters, {config.rope: tables})


def _tensors(parameters: DecoderParameters) -> Iterator[torch.Tensor]:
    yield parameters.embedding
    if parameters.head is not parameters.embedding:
        yield parameters.head
    yield parameters.norm
    for layer in parameters.layers:
        yield from (layer.attention_norm, layer.ffn_norm, layer.qkv, layer.output, layer.gate_up, layer.down)
        yield from (own for own in (layer.qk_norm, layer.router) if own is not None)


def write_config(shape: str, folder: Path) -> ModelFiles:
    """A model folder of which only config.json exists."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "config.json"
    path.write_text(json.dumps(SHAPES[shape]))
    return ModelFiles(name=shape, digest="sha256:" + "0" * 64, format="safetensors", paths={path.name: path})
