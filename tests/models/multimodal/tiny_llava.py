"""A tiny random LLaVA-1.5, as files that the engine loads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig

from edgewise.models.files import ModelFiles
from tests.models.multimodal.small import TEXT, saved

IMAGE = 299
"""Its placeholder."""
ROWS = 16
"""Placeholders of a picture."""
_TOWER: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "image_size": 24,
    "patch_size": 6,
    "projection_dim": 16,
}


def tiny_llava(folder: Path) -> ModelFiles:
    config = LlavaConfig(
        vision_config=CLIPVisionConfig(**_TOWER), text_config=LlamaConfig(**TEXT), image_token_index=IMAGE
    )
    return saved(config, folder)[1]
