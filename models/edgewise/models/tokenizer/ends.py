"""Which control tokens end a generation, besides the one that a model's files name."""

from __future__ import annotations

from collections.abc import Iterable

# Files often name only one of several; each of these ends a turn or a document in every model that has it as a control token.
END_TOKENS = frozenset(
    {
        "<|im_end|>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<|end|>",
        "<|return|>",
        "<|endofturn|>",
        "<end_of_turn>",
        "<EOT>",
        "</s>",
        "<eos>",
        "<｜end▁of▁sentence｜>",
    }
)


def end_ids(control_tokens: Iterable[tuple[int, str]]) -> set[int]:
    """Ids of those control tokens, given as (id, text), that end a generation by their name."""
    return {id for id, text in control_tokens if text in END_TOKENS}
