"""Cuts text into sentences and clauses, so that speech can begin with the first one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from edgewise.models.speech.normalize import normalize

_SENTENCE_END: Final = re.compile(r"(?<=[.!?…])\s+")
_CLAUSE: Final = re.compile(r"([^.,;:!?…—]*)([.,;:!?…—]*)")


@dataclass(frozen=True, slots=True)
class Clause:
    """Words between single spaces, and the punctuation mark after them, "" or one character."""

    words: str
    mark: str


@dataclass(frozen=True, slots=True)
class Sentence:
    """At least one clause."""

    clauses: tuple[Clause, ...]
    ends_paragraph: bool


def sentences(text: str) -> Iterator[Sentence]:
    """The sentences of a text as they are spoken; a line break ends one."""
    for line in text.splitlines():
        found = [clauses for part in _SENTENCE_END.split(normalize(line)) if (clauses := _clauses(part))]
        for number, clauses in enumerate(found, 1):
            yield Sentence(clauses, number == len(found))


def _clauses(sentence: str) -> tuple[Clause, ...]:
    found: list[Clause] = []
    for words, marks in _CLAUSE.findall(sentence):
        if words.strip():
            found.append(Clause(" ".join(words.split()), marks[:1]))
    if found and found[-1].mark in ("", ",", ";", ":", "—"):
        found[-1] = Clause(found[-1].words, ".")
    return tuple(found)
