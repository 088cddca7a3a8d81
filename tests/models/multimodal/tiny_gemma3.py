"""A tiny random Gemma 3 with eyes: layers with a window and without, pictures that see all of themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import Gemma3Config
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil

from edgewise.models.files import ModelFiles
from tests.models.multimodal.small import TEXT, saved

SIDE, COUNT, IMAGE = 112, 16, 290


def tiny_gemma3(folder: Path, **processor: Any) -> tuple[Any, ModelFiles]:
    """The model of transformers, and its files; `processor` are options of its pictures."""
    Gemma3ImageProcessorPil(size={"height": SIDE, "width": SIDE}, **processor).save_pretrained(folder)
    text = {**TEXT, "head_dim": 16, "sliding_window": 64, "query_pre_attn_scalar": 16, "sliding_window_pattern": 2}
    vision = {
        "hidden_size": 32,
        "intermediate_size": 56,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "image_size": SIDE,
        "patch_size": 14,
    }
    config = Gemma3Config(
        text_config=text,
        vision_config=vision,
        mm_tokens_per_image=COUNT,
        image_token_index=IMAGE,
        boi_token_index=291,
        eoi_token_index=292,
    )
    return saved(config, folder)
