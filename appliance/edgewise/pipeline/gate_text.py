"""Texts for a model's gate: prose of our own documentation, and prompts that hide a fact."""

from __future__ import annotations

import random
from collections.abc import Sequence
from importlib.resources import files

from edgewise.pipeline.model import Tokenizer

DEPTHS = (0.1, 0.5, 0.9)
"""Where in the prompt the fact is hidden, as a share of it."""
_PLACES = ("harbour", "library", "brewery", "station", "orchard", "museum", "foundry", "theatre", "quarry", "bakery")


def built_in_text() -> str:
    """Some 4,700 words of English, part of this package."""
    return (files("edgewise.pipeline") / "gate_text.txt").read_text(encoding="utf-8")


def needle_prompts(
    tokenizer: Tokenizer, filler: Sequence[int], lengths: Sequence[int]
) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """(prompt, tokens of the right answer) for each length and depth: the codes of a place, told once and asked at the end.

    Args:
        filler: Tokens of a text to hide it in; repeated where it is shorter than a prompt.
        lengths: Tokens of a prompt.
    """
    rng = random.Random(1)  # noqa: S311 - the same prompts every time, no secret
    made = []
    for number, (length, depth) in enumerate((length, depth) for length in lengths for depth in DEPTHS):
        place, code = _PLACES[number % len(_PLACES)], rng.randrange(10_000, 100_000)
        fact = tokenizer.encode(f"\n\nThe access code of the {place} is {code}.\n\n", parse_special=False)
        question = tokenizer.encode(f"\n\nThe access code of the {place} is", parse_special=False)
        with_answer = tokenizer.encode(f"\n\nThe access code of the {place} is {code}", parse_special=False)
        start = [tokenizer.bos_id] if tokenizer.add_bos and tokenizer.bos_id is not None else []
        room = max(0, length - len(start) - len(fact) - len(with_answer))
        hay = [filler[at % len(filler)] for at in range(room)]
        at = int(room * depth)
        same = next((i for i, (a, b) in enumerate(zip(question, with_answer)) if a != b), len(question))  # noqa: B905
        prompt = [*start, *hay[:at], *fact, *hay[at:], *with_answer[:same]]
        made.append((tuple(prompt), tuple(with_answer[same:])))
    return made
