"""Which words may stand in captions, and which pictures are better not flipped.

A title counts as English if each of its words is one whole word of the encoder's vocabulary and none is a small word of
another language: a model cannot learn what its encoder cannot read.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import Final


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


FOREIGN: Final = _words(
    """di da del della delle dei con per una uno il la le lo gli nel nella al alla e ed che non
    el los las un unos y de du des et les au aux ein eine der die das und mit von zum cane gatto pesce casa sole
    mela pera uovo fiore albero barca nave cavallo uccello"""
)
VAGUE: Final = _words(
    """untitled clipart clip art icon icons image picture drawing design logo symbol sign signs shape pattern
    template vector svg new test simple abstract element elements various misc other part set collection version
    glossy theme style file color colour colors outline silhouette line lines bw remix original my the and of in on
    for with a an at to unknown generic basic sample object objects unsorted recreation contour gradient
    openclipart openoffice inkscape public domain ganson benji park hash desktop office people rules body alt
    christianity stylized menu example creation day number cisco ocal aj ii"""
)
"""Alone they say nothing of what is to be seen."""

NO_FLIP: Final = _words(
    """letter letters digit number left right clockwise counterclockwise clock arrow arrows text word calendar book
    abc input currency dollar euro pound yen banknote label newspaper map music note notes score clef zodiac question
    abacus keyboard calculator atm wc sos ok id card dice sign symbol button playing mahjong medal hundred percent
    flag screen computer watch alarm timer stopwatch alphabet font scissors exclamation mark"""
)

_SPLIT: Final = re.compile(r"[^a-z' ]+")


def clean(text: str) -> str:
    """Lower case, letters and single blanks only."""
    return " ".join(_SPLIT.sub(" ", text.lower().replace("_", " ").replace("'s", "")).split())


def readable(text: str, vocabulary: Collection[str] | None = None) -> bool:
    """Whether a cleaned text says something: 1 to 6 words, one of them not vague; with a `vocabulary`, all known English."""
    words = text.split()
    if not 1 <= len(words) <= 6:
        return False
    if vocabulary is not None and any(word not in vocabulary or word in FOREIGN for word in words):
        return False
    return any(word not in VAGUE and len(word) > 2 for word in words)


def keywords(
    found: Iterable[str], title: str, vocabulary: Collection[str] | None = None, most: int = 6
) -> tuple[str, ...]:
    """The readable ones, each once, without the title itself."""
    cleaned = [clean(word) for word in found]
    kept = [word for word in cleaned if readable(word, vocabulary) and word not in VAGUE and word != title]
    return tuple(dict.fromkeys(kept))[:most]


def may_flip(texts: Iterable[str]) -> bool:
    """Whether the mirror picture deserves the same captions."""
    return not any(word in NO_FLIP for text in texts for word in text.split())


def article(noun: str) -> str:
    """`noun` with "a" or "an", unless it is plural, uncountable or has an article, as far as its spelling tells."""
    first, last = noun.split()[0], noun.split()[-1]
    if first in ("a", "an", "the", "two", "three") or (last.endswith("s") and not last.endswith(("ss", "us", "is"))):
        return noun
    return f"{'an' if first[0] in 'aeiou' else 'a'} {noun}"
