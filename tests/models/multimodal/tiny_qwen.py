"""A tiny random Qwen2-VL, complete on disk: tokenizer with the family's markers and its chat template besides weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from transformers import Qwen2VLConfig
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from edgewise.models.tiny import make_tiny_model
from tests.models.multimodal.small import TEXT, saved

MARKERS = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
MAX_PIXELS = 28 * 28 * 60
_VOCAB = 512
_TOWER = {"depth": 2, "patch_size": 14, "num_heads": 4, "initializer_range": 0.1, "embed_dim": 32, "hidden_size": 64}
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}<|im_end|>\n"
    "{% else %}{% for content in message['content'] %}"
    "{% if content['type'] == 'image' or 'image' in content %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif content['type'] == 'video' or 'video' in content %}<|vision_start|><|video_pad|><|vision_end|>"
    "{% elif 'text' in content %}{{ content['text'] }}{% endif %}{% endfor %}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""That of Qwen2-VL, without its numbering of pictures."""


def tiny_qwen(folder: Path) -> Path:
    """Written into `folder`, which is returned."""
    make_tiny_model(folder, family="qwen2", vocab=_VOCAB, context=4096)
    kept = {name: _read(folder / name) for name in ("tokenizer_config.json", "generation_config.json")}
    ids = {text: _VOCAB + number for number, text in enumerate(MARKERS)}
    text = {
        **TEXT,
        "vocab_size": _VOCAB + len(ids),
        "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": [2, 3, 3]},
    }
    names = ("vision_start_token_id", "vision_end_token_id", "image_token_id", "video_token_id")
    known: dict[str, Any] = dict(zip(names, ids.values(), strict=True))
    saved(Qwen2VLConfig(text_config=text, vision_config=_TOWER, **known), folder)
    Qwen2VLImageProcessorPil(max_pixels=MAX_PIXELS).save_pretrained(folder)
    tokenizer = _read(folder / "tokenizer.json")
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    tokenizer["added_tokens"] += [{"id": id, "content": text, **flags} for text, id in ids.items()]
    kept["tokenizer_config.json"]["chat_template"] = TEMPLATE
    for name, value in {**kept, "tokenizer.json": tokenizer}.items():
        (folder / name).write_text(json.dumps(value))
    return folder


def _read(path: Path) -> Any:
    return json.loads(path.read_text())
