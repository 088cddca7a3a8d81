"""Text that is being written, cut into what can be spoken already: sentences, and clauses of long ones. Nothing is lost."""

from __future__ import annotations

import re
from typing import Final

from edgewise.pipeline.sentence_ends import is_abbreviation, sentence_ends

_CLAUSE: Final = re.compile(r"[,;:]\s+|\s[-\u2013\u2014]+\s+")
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
        for end in sentence_ends(text):
            if text[:end].strip():
                return end
        if self._first and _WORD_END.search(text) and not is_abbreviation(f"{text} ", len(text) + 1):
            return len(text)
        least = FIRST_CLAUSE if self._first else CLAUSE
        for found in _CLAUSE.finditer(text):
            if found.end() >= least:
                return found.end()
        if len(text) > LONGEST:
            return text.rfind(" ", 1, LONGEST) + 1 or LONGEST
        return None
