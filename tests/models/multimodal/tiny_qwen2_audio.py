"""A tiny random Qwen2-Audio, complete on disk: tokenizer with the family's markers and its chat template besides weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from transformers import Qwen2AudioConfig, Qwen2AudioForConditionalGeneration

from edgewise.models.tiny import make_tiny_model
from tests.models.multimodal.small import TEXT

MARKERS = ("<|audio_bos|>", "<|audio_eos|>", "<|AUDIO|>")
SECONDS = 2
TOWER = {
    "num_mel_bins": 80,
    "d_model": 32,
    "encoder_layers": 2,
    "encoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "max_source_positions": 50 * SECONDS,
}
_VOCAB = 512
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}<|im_end|>\n"
    "{% else %}{% for content in message['content'] %}"
    "{% if 'audio' in content or 'audio_url' in content or content['type'] == 'audio' %}"
    "<|audio_bos|><|AUDIO|><|audio_eos|>\n"
    "{% elif 'text' in content %}{{ content['text'] }}{% endif %}{% endfor %}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""That of Qwen2-Audio, without its numbering of recordings."""


def small_qwen2_audio(vocabulary: int, placeholder: int) -> Any:
    """The model alone."""
    torch.manual_seed(3)
    config = Qwen2AudioConfig(
        audio_config={"model_type": "qwen2_audio_encoder", **TOWER},
        text_config={"model_type": "qwen2", **TEXT, "vocab_size": vocabulary},
        audio_token_index=placeholder,
    )
    model: Any = Qwen2AudioForConditionalGeneration(config)
    model.train(False)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.06)
    return model


def tiny_qwen2_audio(folder: Path) -> Path:
    """Written into `folder`, which is returned."""
    make_tiny_model(folder, family="qwen2", vocab=_VOCAB, context=4096)
    kept = {name: _read(folder / name) for name in ("tokenizer_config.json", "generation_config.json")}
    ids = {text: _VOCAB + number for number, text in enumerate(MARKERS)}
    small_qwen2_audio(_VOCAB + len(ids), ids["<|AUDIO|>"]).save_pretrained(folder)
    tokenizer = _read(folder / "tokenizer.json")
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    tokenizer["added_tokens"] += [{"id": id, "content": text, **flags} for text, id in ids.items()]
    kept["tokenizer_config.json"]["chat_template"] = TEMPLATE
    for name, value in {**kept, "tokenizer.json": tokenizer}.items():
        (folder / name).write_text(json.dumps(value))
    return folder


def _read(path: Path) -> Any:
    return json.loads(path.read_text())
