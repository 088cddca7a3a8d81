"""Text that is being written, cut into what can be spoken already: sentences, and clauses of long ones. Nothing is lost."""

from __future__ import annotations

import re
from typing import Final

_SENTENCE: Final = re.compile(r"[.!?\u2026]+[\"')\]]*\s+|\n+\s*")
_CLAUSE: Final = re.compile(r"[,;:]\s+|\s[-\u2013\u2014]+\s+")
_NOT_AN_END: Final = re.compile(
    r"(?:^|[\s(\"'])(?:[A-Za-z]|\d{1,3}|Mrs?|Ms|Dr|St|Prof|Jr|Sr|vs|etc|No|Nr|e\.g|i\.e|a\.m|p\.m|approx|ca)\.\s+$"
)
"""A full stop after an initial, the number of a list or an abbreviation ends no sentence."""

_WORD_END: Final = re.compile(r"[a-z]{3}[.!?]$")
"""Where the first sentence is taken to end though nothing follows yet: a token sooner is heard."""

FIRST_CLAUSE: Final = 40
"""Characters from which the first clause is spoken before its sentence has ended, so that the answer begins soon."""
CLAUSE: Final = 120
"""The same for later ones, which sound better whole."""
LONGEST: Final = 300
"""A text without any punctuation is cut between words here."""


class Phrases:
    """Feed it text as it comes; it hands out phrases whose concatenation is the text."""

    def __init__(self) -> None:
        self._text = ""
        self._first = True

    def feed(self, text: str) -> list[str]:
        """Phrases that can be spoken now."""
        self._text += text
        phrases: list[str] = []
        while (end := self._end()) is not None:
            phrases.append(self._text[:end])
            self._text = self._text[end:]
            self._first = False
        return phrases

    def flush(self) -> str:
        """What is left when the text has ended; may be empty."""
        rest, self._text = self._text, ""
        return rest

    def _end(self) -> int | None:
        text = self._text
        for found in _SENTENCE.finditer(text):
            if text[: found.end()].strip() and not _NOT_AN_END.search(text[: found.end()]):
                return found.end()
        if self._first and _WORD_END.search(text) and not _NOT_AN_END.search(f"{text} "):
            return len(text)
        least = FIRST_CLAUSE if self._first else CLAUSE
        for found in _CLAUSE.finditer(text):
            if found.end() >= least:
                return found.end()
        if len(text) > LONGEST:
            return text.rfind(" ", 1, LONGEST) + 1 or LONGEST
        return None
