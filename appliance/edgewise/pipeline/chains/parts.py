"""Text in pieces: sentence by sentence while it is being written, or as many sentences as fit where all of it is there."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from edgewise.pipeline.sentence_ends import open_end, sentence_ends


class Sentences:
    """Cuts text that arrives in pieces of any size."""

    def __init__(self) -> None:
        self._rest = ""
        self._seen = 0  # no sentence ends before

    def feed(self, text: str) -> list[str]:
        """Sentences that are whole now, without the blanks around them: those after which another character has come, so that
        it does not matter how the text arrives."""
        self._rest += text
        found, start = [], 0
        for end in sentence_ends(self._rest, self._seen):
            if end == len(self._rest):
                break
            found.append(self._rest[start:end].strip())
            start = end
        may_end = open_end(self._rest, max(start, self._seen))
        self._seen = (len(self._rest) if may_end is None else may_end) - start
        self._rest = self._rest[start:]
        return [sentence for sentence in found if sentence]

    def end(self) -> list[str]:
        """What is left."""
        rest, self._rest, self._seen = self._rest.strip(), "", 0
        return [rest] if rest else []


def pack(text: str, limit: int, count: Callable[[str], int]) -> list[str]:
    """`text` in as few pieces as come of filling each with whole sentences; a longer sentence is cut, at a blank if it has one.

    Args:
        limit: Largest `count` of a piece, as far as counts add up.
        count: Tokens of a text.
    """
    pieces: list[str] = []
    held, size = "", 0
    for unit in _units(text, limit, count):
        own = count(unit)
        if held and size + own > limit:
            pieces.append(held)
            held, size = "", 0
        held, size = held + unit, size + own
    return [piece for piece in [*pieces, held] if piece.strip()]


def _units(text: str, limit: int, count: Callable[[str], int]) -> Iterator[str]:
    """Sentences with the blanks after them, so that they join to the text again."""
    start = 0
    for end in [*sentence_ends(text), len(text)]:
        if end > start:
            yield from _cut(text[start:end], limit, count)
        start = end


def _cut(unit: str, limit: int, count: Callable[[str], int]) -> Iterator[str]:
    if len(unit) < 2 or count(unit) <= limit:
        yield unit
        return
    middle = len(unit) // 2
    blank = unit.rfind(" ", 1, middle)
    at = middle if blank < 0 else blank + 1
    yield from _cut(unit[:at], limit, count)
    yield from _cut(unit[at:], limit, count)
