"""What models saw in pictures and films, in words for a prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, Final, TypeAlias

from edgewise.models.manifest import Role

LEAST_SCORE: Final = 0.2
"""Probability below which a label says nothing: there are 1,000, one of which is always the likeliest."""
MOST_CHARACTERS: Final = 4000
"""Of the text in one picture, or in one film, that is told."""

Seen: TypeAlias = Mapping[Role, Mapping[str, Any]]
"""What models saw of one picture, by their role."""


def words(seen: Seen) -> tuple[str, bool]:
    """A picture as a text for a prompt; and whether text in the picture was cut off."""
    return _words("A picture.", seen, MOST_CHARACTERS)


def film_words(frames: Sequence[Seen], every_s: float) -> tuple[str, bool]:
    """The same of a film whose frames lie `every_s` seconds apart; frames in a row that look alike are told once."""
    count = len(frames)
    looked = "one picture was" if count == 1 else f"{count} pictures were"
    told, cut, left = [f"A film of {every_s * count:.1f} s, of which {looked} looked at."], False, MOST_CHARACTERS
    for _, group in groupby(enumerate(frames), key=lambda it: _words("", it[1], MOST_CHARACTERS)):
        (first, seen), *others = group
        when = f"At {first * every_s:.1f} s:"
        if others:
            when = f"From {first * every_s:.1f} s to {others[-1][0] * every_s:.1f} s:"
        text, more = _words(when, seen, left)
        left -= min(left, len(_written(seen)))
        told.append(text)
        cut = cut or more
    return "\n".join(told), cut


def _words(head: str, seen: Seen, most: int) -> tuple[str, bool]:
    text = _written(seen)
    labels = seen["vision"]["labels"] if "vision" in seen else ()
    names = [label["name"] for label in labels if label["score"] >= LEAST_SCORE]
    told = f"{head} Text in it:\n{text[:most]}" if text else head
    if "ocr" in seen and not text:
        told += " There is no text in it."
    if names:
        told += ("\n" if text else " ") + f"It shows: {', '.join(names)}."
    elif "vision" in seen and not text:
        told += " It is not known what it shows."
    return told, len(text) > most


def _written(seen: Seen) -> str:
    return "\n".join(line["text"] for line in seen["ocr"]["lines"]) if "ocr" in seen else ""
