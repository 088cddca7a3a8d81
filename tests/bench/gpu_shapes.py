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
}


def config_of(shape: str, layers: int | None = None) -> DecoderConfig:
    """`layers`: fewer than the shape has, for checks."""
    fields = SHAPES[shape] if layers is None else {**SHAPES[shape], "num_hidden_layers": layers}
    return DecoderConfig.from_hf(fields)


def product_weights(config: DecoderConfig) -> int:
    """Weights that are read for one token: all matrices, the head among them, the table of embeddings not."""
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    layer = config.hidden_size * (2 * queries + 2 * keys + 3 * config.ffn_size)
    return config.num_layers * layer + config.vocab_size * config.hidden_size


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


def write_config(shape: str, folder: Path) -> ModelFiles:
    """A model folder of which only config.json exists."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "config.json"
    path.write_text(json.dumps(SHAPES[shape]))
    return ModelFiles(name=shape, digest="sha256:" + "0" * 64, format="safetensors", paths={path.name: path})
