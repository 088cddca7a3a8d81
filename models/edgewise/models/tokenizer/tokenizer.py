"""Text to token ids and back, with the exact bytes of every token."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any

import tokenizers
from tokenizers import AddedToken

from edgewise.core.errors import InvalidRequest, UnsupportedModel
from edgewise.models import bytelevel

_SPACE_MARK = "\u2581"  # how SentencePiece writes a space


class Spelling(Enum):
    """How a vocabulary writes bytes."""

    BYTE_LEVEL = "byte-level"  # every byte one character of the GPT-2 alphabet
    SENTENCEPIECE = "sentencepiece"  # text with U+2581 for a space, and tokens <0x00> to <0xFF>


class Tokenizer:
    """A model's tokenizer.

    Attributes:
        vocab_size: One more than the largest id. The model's logits may have more columns; such ids have no text.
        bos_id: Start token, if the model has one.
        eos_ids: Every token that ends a generation.
        add_bos: The model expects `bos_id` before a plain text (chat templates write it themselves).
        special_tokens: Texts by role ("bos_token", "eos_token", ...), as chat templates expect them.
        missing_bytes: Bytes that the vocabulary cannot write; `encode` leaves them out, as every implementation does.
            SmolLM2 lacks six control characters and the lead bytes of planes that Unicode has not assigned.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        spelling: Spelling,
        *,
        vocab_size: int,
        special_tokens: Mapping[str, str],
        eos_ids: Iterable[int],
        add_bos: bool,
        prefix_space: bool = False,
        silent_ids: Iterable[int] = (),
    ) -> None:
        """Wrap a backend.

        Args:
            backend: Without truncation and padding.
            prefix_space: The backend puts a space before a text; `decode` takes it away again.
            silent_ids: Ids that have no text beside the special ones (unknown and unused tokens).
        """
        self._backend = backend
        self._spelling = spelling
        self._added: dict[int, AddedToken] = backend.get_added_tokens_decoder()
        self._literal = _without_specials(backend, self._added)
        self._silent = frozenset(silent_ids)
        self._prefix_space = prefix_space
        self._bytes: dict[int, bytes] = {}
        self.vocab_size = vocab_size
        self.special_tokens = dict(special_tokens)
        self.eos_ids = frozenset(eos_ids)
        bos = special_tokens.get("bos_token")
        self.bos_id: int | None = backend.token_to_id(bos) if bos is not None else None
        self.add_bos = add_bos and self.bos_id is not None
        self.missing_bytes = frozenset(
            byte for byte in range(256) if backend.token_to_id(_written(byte, spelling)) is None
        )

    def __repr__(self) -> str:
        return f"Tokenizer({self._spelling.value}, {self.vocab_size} tokens, eos {sorted(self.eos_ids)})"

    def encode(self, text: str, *, add_special: bool = False, parse_special: bool = True) -> list[int]:
        """Token ids of a text.

        Args:
            add_special: Put the start token in front, if the model expects one (`add_bos`).
            parse_special: Turn the written form of special tokens ("<|im_end|>") into their ids. False takes all text as
                plain: nothing a user writes can then end a turn or start another.

        Raises:
            InvalidRequest: The text has half a surrogate pair, which no encoding of Unicode can carry.
        """
        try:
            ids = (self._backend if parse_special else self._literal).encode(text, add_special_tokens=False).ids
        except (UnicodeEncodeError, TypeError) as error:
            raise InvalidRequest(
                f"The text is not valid Unicode ({_surrogate(text)}): send whole characters."
            ) from error
        return [self.bos_id, *ids] if add_special and self.add_bos and self.bos_id is not None else list(ids)

    def token_bytes(self, id: int, /) -> bytes:
        """The bytes that a token adds to the text; b"" for special tokens and for ids that the vocabulary lacks."""
        known = self._bytes.get(id)
        if known is None:
            known = self._bytes[id] = self._spell(id) if 0 <= id < self.vocab_size else b""
        return known

    def token_text(self, id: int, /) -> str:
        """A token as people read it: a special token's name, else its bytes as UTF-8 (U+FFFD for parts of characters)."""
        added = self._added.get(id)
        return added.content if added is not None else self.token_bytes(id).decode(errors="replace")

    def is_special(self, id: int, /) -> bool:
        """True for control tokens such as <|im_end|>; they are no part of the text."""
        added = self._added.get(id)
        return added is not None and added.special

    def decode(self, ids: Iterable[int], skip_special: bool = True) -> str:
        """The text of tokens; bytes that are not UTF-8 become U+FFFD."""
        parts = [
            self.token_text(id).encode() if self.is_special(id) and not skip_special else self.token_bytes(id)
            for id in ids
        ]
        text = b"".join(parts).decode(errors="replace")
        return text.removeprefix(" ") if self._prefix_space else text

    def _spell(self, id: int) -> bytes:
        added = self._added.get(id)
        if added is not None:
            return b"" if added.special else added.content.encode()
        piece = self._backend.id_to_token(id)
        if piece is None or id in self._silent:
            return b""
        if self._spelling is Spelling.BYTE_LEVEL:
            raw = bytelevel.to_bytes(piece)
            return piece.encode() if raw is None else raw
        if len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">"):
            return bytes.fromhex(piece[3:5])
        return piece.replace(_SPACE_MARK, " ").encode()


def _written(byte: int, spelling: Spelling) -> str:
    return bytelevel.BYTE_TO_CHAR[byte] if spelling is Spelling.BYTE_LEVEL else f"<0x{byte:02X}>"


def _without_specials(backend: tokenizers.Tokenizer, added: Mapping[int, AddedToken]) -> tokenizers.Tokenizer:
    """A second backend over the same model (shared, not copied) that takes special tokens for plain text.

    Raises:
        UnsupportedModel: The added tokens would get other ids.
    """
    literal = tokenizers.Tokenizer(backend.model)
    parts: Any = literal
    if backend.normalizer is not None:
        parts.normalizer = backend.normalizer
    if backend.pre_tokenizer is not None:
        parts.pre_tokenizer = backend.pre_tokenizer
    for id, token in sorted(added.items()):
        (literal.add_special_tokens if token.special else literal.add_tokens)([token])
        if literal.token_to_id(token.content) != id:
            raise UnsupportedModel(
                f"The added token {token.content!r} has the id {id}, which the vocabulary leaves open."
            )
    literal.encode_special_tokens = True
    return literal


def _surrogate(text: str) -> str:
    for index, char in enumerate(text):
        if "\ud800" <= char <= "\udfff":
            return f"U+{ord(char):04X} at character {index}"
    return "unknown place"
