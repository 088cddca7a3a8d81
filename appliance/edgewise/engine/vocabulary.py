"""The spelling of every token, as far as an engine needs it to hold an answer to a grammar.

The engine knows no text, so the service, which has the tokenizer, hands the table over with the engine's configuration.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """Bytes per token id.

    Attributes:
        spellings: The bytes that each id adds to the text, b"" for none; of a control token its name.
        special: Ids of control tokens: they are no text, and only a grammar that names them allows them.
        eos: Ids that end an answer.
    """

    spellings: tuple[bytes, ...]
    special: tuple[int, ...]
    eos: tuple[int, ...]

    def __repr__(self) -> str:
        return f"Vocabulary({len(self.spellings)} tokens, {len(self.special)} special, eos {list(self.eos)})"
