"""Graphemes to phonemes: the words of a clause to their sounds in it, with what a word's neighbours change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from edgewise.models.speech.lexicon import PRIMARY, SECONDARY, Lexicon

_VOWELS: Final = frozenset("AIOWYaiu\u00e6\u0251\u0252\u0254\u0259\u025b\u025c\u026a\u028a\u028c\u0250\u1d7b")

_BEFORE_NOUN: Final = frozenset({
    "a", "an", "the", "this", "these", "those", "my", "your", "his", "her", "its", "our", "their", "no", "some", "any",
    "each", "every", "another", "of", "in", "on", "at", "for", "with", "from", "by", "into", "new", "old", "good", "bad",
    "first", "second", "last", "next", "own", "same", "great", "big", "small", "little", "long", "short", "live", "world",
})  # fmt: skip
_BEFORE_VERB: Final = frozenset({
    "to", "i", "you", "we", "they", "who", "will", "would", "can", "could", "shall", "should", "may", "might", "must", "do",
    "does", "did", "don't", "doesn't", "didn't", "won't", "can't", "couldn't", "wouldn't", "shouldn't", "not", "let's",
    "please", "i'll", "you'll", "we'll", "they'll", "he'll", "she'll", "i'd", "you'd", "we'd", "they'd", "never", "always",
    "often", "usually",
})  # fmt: skip
_PERFECT: Final = frozenset({
    "have", "has", "had", "haven't", "hasn't", "hadn't", "i've", "you've", "we've", "they've", "was", "were", "been", "be",
    "is", "are", "being", "wasn't", "weren't", "isn't", "aren't", "he's", "she's", "it's", "got",
})  # fmt: skip
_BE: Final = frozenset({
    "is", "was", "are", "were", "be", "been", "being", "it's", "isn't", "wasn't", "aren't", "weren't",
})  # fmt: skip
_PAST: Final = frozenset({
    "yesterday", "ago", "already", "last", "earlier", "before",
})  # fmt: skip
_OBJECTS: Final = frozenset({
    "a", "an", "the", "this", "that", "these", "those", "my", "your", "his", "her", "its", "our", "their", "it", "them",
    "him", "us", "me", "all",
})  # fmt: skip


class Phonemizer:
    """Args:
    lexicon: Pronunciations.
    """

    def __init__(self, lexicon: Lexicon) -> None:
        self._lexicon = lexicon

    def clause(self, text: str) -> str:
        """Phonemes of words between single spaces, which stand between single spaces too."""
        words = text.split()
        said: list[str] = []
        following: str | None = None
        for at in reversed(range(len(words))):
            sounds = self._word(words, at, following)
            if sounds:
                said.append(sounds)
                following = sounds
        return " ".join(reversed(said))

    def _word(self, words: Sequence[str], at: int, following: str | None) -> str:
        """`following`: the sounds after it; None at the end of the clause."""
        word = words[at]
        special = _small_word(word, at, words, following)
        return self._lexicon.pronounce(word, part_of(words, at)) if special is None else special


def _small_word(word: str, at: int, words: Sequence[str], following: str | None) -> str | None:
    """Words without stress, whose sounds depend on what comes after them."""
    lower = word.lower()
    before_vowel = following is not None and following.lstrip(PRIMARY + SECONDARY)[:1] in _VOWELS
    if lower == "a" and following is not None and (word == "a" or at == 0):
        return "\u0250"
    if lower == "an" and word != "AN":
        return "\u0250n"
    if lower == "the":
        return "\u00f0i" if before_vowel else "\u00f0\u0259"
    if lower == "to" and following is not None:
        return "t\u028a" if before_vowel else "t\u0259"
    if word == "I":
        return f"{SECONDARY}I"
    if lower == "used" and following is not None and words[at + 1].lower() == "to":
        return f"j{PRIMARY}uzd" if at and words[at - 1].lower() in _BE else f"j{PRIMARY}ust"
    return None


def part_of(words: Sequence[str], at: int) -> str:
    """What a word is likely to be in its clause, judged by its neighbours, in the dictionary's names; "DEFAULT" where they say
    nothing."""
    before = words[at - 1].lower() if at else ""
    after = words[at + 1].lower() if at + 1 < len(words) else ""
    lower = words[at].lower()
    if lower == "read":
        past = before in _PERFECT or any(word.lower() in _PAST for word in words)
        return "VBD" if past and before not in ("to", "will", "can", "did", "didn't") else "DEFAULT"
    if lower == "live":
        return "DEFAULT" if not before or before in _BE or (before in _BEFORE_NOUN and after) else "VERB"
    if lower == "close" and before in _BEFORE_NOUN and after and after not in _OBJECTS:
        return "DEFAULT"
    if before in _BEFORE_VERB:
        return "VERB"
    if before in _BEFORE_NOUN:
        return "NOUN"
    if not before and after in _OBJECTS:
        return "VERB"  # a command: "Record the meeting"
    if not after and before:
        return "None" if lower in ("can", "by", "that") else "DEFAULT"
    return "DEFAULT"
