"""Guesses by prompt lookup: where the last tokens stood before, what followed them may follow again (Saxena 2023).

Answers that quote their prompt (edits of code, summaries, tables, what a search found) and answers that repeat themselves are
guessed well; nothing else is, and looking costs microseconds.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence as Seq
from dataclasses import dataclass

MATCHES = (6, 3)
"""Lengths of the endings looked for, the longest first: the longer the match, the likelier that it goes on."""

_TOKEN = array("i").itemsize


@dataclass(frozen=True, slots=True)
class Guess:
    """Tokens that may come next, and how many before them matched."""

    tokens: tuple[int, ...]
    matched: int


class History:
    """The tokens of one sequence, packed for searching: four bytes each."""

    def __init__(self) -> None:
        self._packed = bytearray()
        self._count = 0

    def __repr__(self) -> str:
        return f"History({self._count} tokens)"

    def guess(self, tokens: Seq[int], most: int) -> Guess | None:
        """What may follow `tokens`, at most `most` of them; `tokens` are those of the last call and more.

        The latest place counts. Where its continuation reaches the end it goes round: a loop is guessed for as long as asked.
        """
        self._packed += array("i", tokens[self._count :]).tobytes()
        self._count = len(tokens)
        for length in MATCHES:
            place = self._find(length)
            if place is not None:
                return Guess(_continue(tokens, place + length, most), length)
        return None

    def _find(self, length: int) -> int | None:
        """Where the last `length` tokens stood before, the latest place; None if nowhere."""
        if self._count <= length:
            return None
        ending = bytes(self._packed[-length * _TOKEN :])
        end = len(self._packed) - 1  # the ending itself does not count
        while (at := self._packed.rfind(ending, 0, end)) >= 0:
            if at % _TOKEN == 0:
                return at // _TOKEN
            end = at + len(ending) - 1
        return None


def _continue(tokens: Seq[int], start: int, most: int) -> tuple[int, ...]:
    found = list(tokens[start : start + most])
    round_ = len(found)
    while len(found) < most:
        found.append(found[len(found) - round_])
    return tuple(found)
