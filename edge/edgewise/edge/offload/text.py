"""Between texts and tokens, for back ends that speak text only: what is made of a text decodes to exactly it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from edgewise.core.errors import EngineFault
from edgewise.pipeline.model import Tokenizer


class TextTokens:
    """The tokens of one model's texts."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def text_of(self, tokens: Sequence[int]) -> str:
        """Their text with special tokens in their written form, as a chat template writes them."""
        return self._tokenizer.decode(tokens, skip_special=False)

    def tokens_of(self, text: str) -> tuple[int, ...]:
        """Tokens that decode to `text`; none of them special, whatever it looks like.

        Where the tokenizer's own choice reads otherwise (some put a blank before a first word), the longest pieces are taken.

        Raises:
            EngineFault: The vocabulary cannot write it.
        """
        raw = text.encode()
        tokens = tuple(self._tokenizer.encode(text, add_special=False, parse_special=False))
        if b"".join(map(self._tokenizer.token_bytes, tokens)) == raw:
            return tokens
        return self._longest(raw)

    def _longest(self, raw: bytes) -> tuple[int, ...]:
        pieces, widest = self._pieces
        tokens: list[int] = []
        at = 0
        while at < len(raw):
            for width in range(min(widest, len(raw) - at), 0, -1):
                token = pieces.get(raw[at : at + width])
                if token is not None:
                    tokens.append(token)
                    at += width
                    break
            else:
                raise EngineFault(f"This model's vocabulary cannot write the byte {raw[at]} that the cloud sent.")
        return tuple(tokens)

    @cached_property
    def _pieces(self) -> tuple[dict[bytes, int], int]:
        """Every ordinary token by its bytes, and the length of the longest. Made once, where it is needed at all."""
        tokenizer = self._tokenizer
        ordinary = (id for id in range(tokenizer.vocab_size) if not tokenizer.is_special(id))
        pieces = {piece: id for id in ordinary if (piece := tokenizer.token_bytes(id))}
        return pieces, max(map(len, pieces), default=0)
