"""A tokenizer's tokens as bytes: for the engine, and for the check of a grammar before anything is queued."""

from __future__ import annotations

from typing import Protocol

from edgewise.engine.vocabulary import Vocabulary


class Spelled(Protocol):
    """What of a tokenizer is needed (`pipeline.model.Tokenizer` has it)."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def eos_ids(self) -> frozenset[int]: ...

    def token_bytes(self, id: int, /) -> bytes: ...

    def token_text(self, id: int, /) -> str: ...

    def is_special(self, id: int, /) -> bool: ...


def vocabulary_of(tokenizer: Spelled) -> Vocabulary:
    """Every token's bytes; control tokens under their names. Takes about a second for 250,000 tokens."""
    special = tuple(id for id in range(tokenizer.vocab_size) if tokenizer.is_special(id))
    names = {id: tokenizer.token_text(id).encode() for id in special}
    return Vocabulary(
        spellings=tuple(names.get(id) or tokenizer.token_bytes(id) for id in range(tokenizer.vocab_size)),
        special=special,
        eos=tuple(sorted(tokenizer.eos_ids)),
    )


def checking_vocabulary(tokenizer: Spelled) -> Vocabulary:
    """A small stand-in with the same control tokens under the same ids, and one token per byte beyond the others.

    A grammar compiles with it as it does with the whole, in a thousandth of the time.
    """
    size = tokenizer.vocab_size
    special = tuple(id for id in range(size) if tokenizer.is_special(id))
    spellings = [b""] * size + [bytes([byte]) for byte in range(256)]
    for id in special:
        spellings[id] = tokenizer.token_text(id).encode()
    return Vocabulary(spellings=tuple(spellings), special=special, eos=tuple(sorted(tokenizer.eos_ids)))
