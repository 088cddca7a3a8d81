"""A tiny random Qwen2.5-Omni, complete on disk: tokenizer with the family's markers and a chat template besides weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from edgewise.models.tiny import make_tiny_model
from tests.models.omni.small import folder, small_omni

_WORDS: Final = 512
_SPOKEN: Final = 600
MARKERS: Final = (
    "<|AUDIO|>",
    "<|IMAGE|>",
    "<|VIDEO|>",
    "<|audio_bos|>",
    "<|audio_eos|>",
    "<|vision_bos|>",
    "<|vision_eos|>",
    "<tts_text_bos>",
    "<tts_text_eod>",
    "<tts_pad>",
)
TEMPLATE: Final = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}<|im_end|>\n"
    "{% else %}{% for content in message['content'] %}"
    "{% if content['type'] == 'image' %}<|vision_bos|><|IMAGE|><|vision_eos|>"
    "{% elif content['type'] == 'audio' %}<|audio_bos|><|AUDIO|><|audio_eos|>"
    "{% elif content['type'] == 'video' %}<|vision_bos|><|VIDEO|><|vision_eos|>"
    "{% elif 'text' in content %}{{ content['text'] }}{% endif %}{% endfor %}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""That of Qwen2.5-Omni, without its system message."""


def tiny_omni(path: Path) -> Path:
    """Written into `path`, which is returned. Its Talker speaks until its context is full, less than a second."""
    make_tiny_model(path, family="qwen2", vocab=_WORDS, context=4096)
    kept = {name: _read(path / name) for name in ("tokenizer_config.json", "generation_config.json")}
    folder(small_omni(_WORDS, _SPOKEN), path)
    tokenizer = _read(path / "tokenizer.json")
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    tokenizer["added_tokens"] += [{"id": _WORDS + at, "content": text, **flags} for at, text in enumerate(MARKERS)]
    kept["tokenizer_config.json"]["chat_template"] = TEMPLATE
    for name, value in {**kept, "tokenizer.json": tokenizer}.items():
        (path / name).write_text(json.dumps(value))
    return path


def _read(path: Path) -> Any:
    return json.loads(path.read_text())
