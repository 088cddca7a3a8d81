"""Words with their times, from the frames in which their tokens begin.

As OpenAI's `timing.py` does it: tokens become words, a word that swallowed the pause beside it is cut back, and marks go with the
word that they stand at.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Final, Protocol

from edgewise.models.whisper.config import TIME_STEP
from edgewise.pipeline.transcribe.text import Piece

UNSPACED: Final = frozenset({"zh", "ja", "th", "lo", "my", "yue"})
"""Languages that are written without spaces: there each character that tokens make up is a word."""
_BEFORE: Final = "\"'“¿([{-"
_AFTER: Final = "\"'.。,，!！?？:：”)]}、"
_SENTENCE_ENDS: Final = ".。!！?？"
_MARKS: Final = frozenset("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")
_MOST_USUAL: Final = 0.7
"""Seconds of a usual word, at most; one of twice that has a pause in it."""
_SLACK: Final = 0.5
"""Seconds by which a word may be outside its segment before the segment's own time is believed."""
_BROKEN: Final = "\ufffd"


class Decodes(Protocol):
    def decode(self, ids: Sequence[int]) -> str: ...


@dataclass(frozen=True, slots=True)
class Word:
    """A word without spaces around it, and where it is spoken, in seconds."""

    word: str
    start: float
    end: float


@dataclass(slots=True)
class _Placed:
    """A word in the making: `text` begins with the space before it."""

    text: str
    start: float
    end: float


def place_words(
    pieces: Sequence[Piece], frames: Sequence[int], tokenizer: Decodes, *, spaced: bool, before: float
) -> list[list[Word]]:
    """The words of each piece, in seconds of their window: in order, none before the end of the one before it.

    Args:
        frames: In which each token of all pieces begins, and where the last one ends.
        spaced: Whether words have spaces between them (`UNSPACED`).
        before: Second of the window, maybe negative, in which the last word before it ended.
    """
    found: list[list[_Placed]] = []
    at = 0
    for piece in pieces:
        words = []
        for text, count in split_words(piece.tokens, tokenizer, spaced=spaced):
            words.append(_Placed(text, frames[at] * TIME_STEP, frames[at + count] * TIME_STEP))
            at += count
        found.append(words)
    lengths = [word.end - word.start for words in found for word in words if word.end > word.start]
    usual = min(_MOST_USUAL, median(lengths)) if lengths else 0.0
    _cut_pauses([word for words in found for word in words], 2 * usual)
    merged = [_with_marks(words) for words in found]
    for piece, words in zip(pieces, merged, strict=True):
        if words:
            _cut_first(words, piece, usual, before)
            _cut_last(words, piece, usual)
            before = words[-1].end
    return [[Word(word.text.strip(), word.start, word.end) for word in words] for words in merged]


def split_words(tokens: Sequence[int], tokenizer: Decodes, *, spaced: bool) -> list[tuple[str, int]]:
    """The words that tokens spell, spaces before them kept, and how many tokens each has.

    Tokens that end within a character belong together. Where words are `spaced`, what begins without a space goes on the word
    before it, unless it is a mark.
    """
    words: list[tuple[str, int]] = []
    whole, begun, count, offset = tokenizer.decode(tokens), 0, 0, 0
    for end in range(1, len(tokens) + 1):
        text, count = tokenizer.decode(tokens[begun:end]), end - begun
        broken = text.find(_BROKEN)
        # Bytes that are no text at all stay broken in the whole too.
        if broken >= 0 and end < len(tokens) and whole[offset + broken : offset + broken + 1] != _BROKEN:
            continue
        begun, offset = end, offset + len(text)
        if spaced and words and not text.startswith(" ") and text.strip() not in _MARKS:
            words[-1] = (words[-1][0] + text, words[-1][1] + count)
        else:
            words.append((text, count))
    return words


def _cut_pauses(words: Sequence[_Placed], longest: float) -> None:
    """At the ends of sentences: the pause is in the mark, or in the word after it."""
    for last, word in pairwise(words):
        if word.end - word.start > longest:
            if word.text in _SENTENCE_ENDS:
                word.end = word.start + longest
            elif last.text in _SENTENCE_ENDS:
                word.start = word.end - longest


def _cut_first(words: Sequence[_Placed], piece: Piece, usual: float, before: float) -> None:
    """The first word of a piece, and a second one that shares it, after a pause."""
    first, longest = words[0], 2 * usual
    second = words[1] if len(words) > 1 else None
    stretched = first.end - first.start > longest or (second is not None and second.end - first.start > 2 * longest)
    if first.end - before > 4 * usual and stretched:
        if second is not None and second.end - second.start > longest:
            first.end = second.start = second.end - longest
        first.start = max(first.start, first.end - longest)
    if first.start + _SLACK < piece.start < first.end:
        first.start = max(first.start, min(first.end - usual, piece.start))


def _cut_last(words: Sequence[_Placed], piece: Piece, usual: float) -> None:
    last = words[-1]
    if last.start < piece.end < last.end - _SLACK:
        last.end = min(last.end, max(last.start + usual, piece.end))


def _with_marks(words: Sequence[_Placed]) -> list[_Placed]:
    """Marks that stand before or behind a word are part of it; what is only space is none."""
    found: list[_Placed] = []
    opening: _Placed | None = None
    for word in words:
        text, start = word.text, word.start
        if opening is not None:
            text, start, opening = opening.text + text, opening.start, None
        if text.startswith(" ") and text.strip() and text.strip() in _BEFORE:
            opening = _Placed(text, start, word.end)
        elif found and text and text in _AFTER and not found[-1].text.endswith(" "):
            found[-1] = _Placed(found[-1].text + text, found[-1].start, word.end)
        else:
            found.append(_Placed(text, start, word.end))
    found += [] if opening is None else [opening]
    return [word for word in found if word.text.strip()]
