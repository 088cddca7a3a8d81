"""Where sentences end in running text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

_MARKS: Final = r"(?<![.!?\u2026])[.!?\u2026]+[\"')\]\u2019\u201d]*"
"""From the first mark of several only, else the time for many of them would grow with the square of their number."""
_WIDE: Final = r"[\u3002\uff01\uff1f]+\s*|\n\s*"
_END: Final = re.compile(rf"{_MARKS}\s+|{_WIDE}")
_MAY_END: Final = re.compile(rf"(?:{_MARKS}\s*|{_WIDE})\Z")
_NOT_AN_END: Final = re.compile(
    r"(?:(?:^|[\s(\"'])(?:[A-Za-z]|Mrs?|Ms|Dr|St|Prof|Jr|Sr|vs|etc|No|Nr|e\.g|i\.e|a\.m|p\.m|approx|ca)"
    r"|(?:^|\n|[.!?:;]\s)\s*\d{1,3})\.\s+\Z"
)
_LONGEST: Final = 16
"""Characters of such an abbreviation, with the blanks around it."""


def sentence_ends(text: str, start: int = 0) -> Iterator[int]:
    """Positions behind sentences and the blanks after them: a mark and a blank, a mark of Chinese or Japanese, a line's end.

    A full stop after an initial, an abbreviation or the number of a list, which begins a line or a sentence, ends none.

    Args:
        start: No sentence ends before.
    """
    for found in _END.finditer(text, start):
        if not is_abbreviation(text, found.end()):
            yield found.end()


def is_abbreviation(text: str, end: int) -> bool:
    """Whether what stands before `end`, a full stop and blanks, belongs to a word."""
    return _NOT_AN_END.search(text, max(0, end - _LONGEST), end) is not None


def open_end(text: str, start: int = 0) -> int | None:
    """Where at the end of a text begins what may be the end of a sentence once more is there; None where nothing does."""
    found = _MAY_END.search(text, start)
    return None if found is None else found.start()
