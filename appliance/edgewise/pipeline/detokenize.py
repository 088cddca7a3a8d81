"""Token ids to text, one token at a time, in whole characters only."""

from __future__ import annotations

import codecs
from collections.abc import Mapping

from edgewise.pipeline.model import Tokenizer


class Detokenizer:
    """Turns one sequence's tokens into text.

    Bytes of a character that is not complete yet are held; bytes that can never become a character are shown as U+FFFD as
    soon as that is certain. Special tokens add nothing, but for those in `revealed`, which add the bytes given there. The text
    does not depend on how tokens arrive.
    """

    def __init__(self, tokenizer: Tokenizer, revealed: Mapping[int, bytes] | None = None) -> None:
        self._tokenizer = tokenizer
        self._revealed = revealed or {}
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._position = 0

    @property
    def position(self) -> int:
        """Characters shown so far; the index of the character that the next byte belongs to."""
        return self._position

    @property
    def pending(self) -> int:
        """Bytes held of a character that is not complete."""
        return len(self._decoder.getstate()[0])

    def push(self, token: int) -> str:
        """The characters completed by this token."""
        raw = self._revealed.get(token)
        if raw is None and self._tokenizer.is_special(token):
            return ""
        text = self._decoder.decode(self._tokenizer.token_bytes(token) if raw is None else raw)
        self._position += len(text)
        return text
