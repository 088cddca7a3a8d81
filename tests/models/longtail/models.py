"""Small random models of families that transformers runs for us, saved as folders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from edgewise.models.files import ModelFiles
from edgewise.models.tiny import local_files

SIZES: dict[str, Any] = {
    "vocab_size": 300,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.15,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


def save(folder: Path, family: str, **options: Any) -> ModelFiles:
    """`family` is transformers' model_type."""
    torch.manual_seed(3)
    config = AutoConfig.for_model(family, **{**SIZES, **options})
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    return local_files(folder)
