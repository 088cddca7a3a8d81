"""Test doubles of a tokenizer and a chat template: one token per byte, a few special tokens, and plain tags."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from edgewise.core.errors import TemplateFailed
from edgewise.models.templates.tool_styles import ToolSupport

SPECIAL = {256: "<|start|>", 257: "<|end|>", 258: "<|text|>"}
BOS, EOS = 258, 257


class ByteTokenizer:
    """Ids 0..255 are bytes, 256..258 special, and those from 259 the multi-byte `extra` pieces (decoding only)."""

    def __init__(
        self,
        extra: Sequence[bytes] = (),
        *,
        vocab_size: int = 512,
        bos: bool = False,
        missing: frozenset[int] = frozenset(),
    ) -> None:
        self.vocab_size = vocab_size
        self.bos_id = BOS if bos else None
        self.eos_ids = frozenset({EOS})
        self.add_bos = bos
        self.missing_bytes = missing
        self._extra = {259 + index: piece for index, piece in enumerate(extra)}
        self._special = {text: id for id, text in SPECIAL.items()}

    def encode(self, text: str, *, add_special: bool = False, parse_special: bool = True) -> list[int]:
        pattern = "|".join(re.escape(name) for name in self._special) if parse_special else r"(?!)"
        ids: list[int] = [BOS] if add_special and self.add_bos else []
        for piece in re.split(f"({pattern})", text):
            ids.extend([self._special[piece]] if parse_special and piece in self._special else piece.encode())
        return ids

    def token_bytes(self, id: int) -> bytes:
        if id < 256:
            return bytes([id])
        return self._extra.get(id, SPECIAL.get(id, f"[{id}]").encode())

    def token_text(self, id: int) -> str:
        return self.token_bytes(id).decode(errors="replace")

    def is_special(self, id: int) -> bool:
        return id in SPECIAL

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
        return b"".join(self.token_bytes(id) for id in ids if not (skip_special and id in SPECIAL)).decode(
            errors="replace"
        )


class TagTemplate:
    """`<|start|>role\\ncontent<|end|>\\n` for every message; refuses a conversation with the content "refuse me"."""

    def __init__(self, tool_support: ToolSupport | None = None) -> None:
        self.tool_support = tool_support or ToolSupport()
        self.takes_parts = False

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> str:
        if any(message["content"] == "refuse me" for message in messages):
            raise TemplateFailed("The chat template refuses these messages.", param="messages")
        text = "".join(f"<|start|>{message['role']}\n{message['content']}<|end|>\n" for message in messages)
        return text + ("<|start|>assistant\n" if add_generation_prompt else "")
