"""Cuts text into sentences and clauses, so that speech can begin with the first one."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from edgewise.models.speech.normalize import DASH, MARKS, normalize

_SENTENCE_END: Final = re.compile(r"(?<=[.!?])\s+")
_CLAUSE: Final = re.compile(rf"([^{MARKS}{DASH}]+)([{MARKS}{DASH}]?)")


@dataclass(frozen=True, slots=True)
class Clause:
    """Words between single spaces, and the punctuation mark after them, "" or one character."""

    words: str
    mark: str


@dataclass(frozen=True, slots=True)
class Sentence:
    """At least one clause; the last one has the mark of a sentence's end."""

    clauses: tuple[Clause, ...]
    ends_paragraph: bool


def sentences(text: str) -> tuple[list[Sentence], str]:
    """The sentences of a text as they are spoken, and the characters that nothing is said for. A line break ends a sentence."""
    said: list[Sentence] = []
    unspoken = ""
    for line in text.splitlines():
        reading = normalize(line)
        unspoken += reading.unspoken
        found = [clauses for part in _SENTENCE_END.split(reading.text) if (clauses := _clauses(part))]
        said += [Sentence(clauses, number == len(found)) for number, clauses in enumerate(found, 1)]
    return said, "".join(dict.fromkeys(unspoken))


def _clauses(sentence: str) -> tuple[Clause, ...]:
    found = [Clause(words.strip(), mark) for words, mark in _CLAUSE.findall(sentence) if words.strip()]
    if found and found[-1].mark not in tuple(".!?"):
        found[-1] = Clause(found[-1].words, ".")
    return tuple(found)
