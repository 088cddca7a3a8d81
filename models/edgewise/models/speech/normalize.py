"""What is said of what is written: text of any kind to words and the punctuation marks that voices know."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from typing import Final

from edgewise.models.speech.abbreviations import SYMBOLS, expand, lettered
from edgewise.models.speech.numbers import cardinal, spelled
from edgewise.models.speech.readings import RULES

MARKS: Final = ".,;:!?"
DASH: Final = "\N{EM DASH}"

_SAME: Final = {
    **dict.fromkeys("\N{LEFT SINGLE QUOTATION MARK}\N{RIGHT SINGLE QUOTATION MARK}\N{MODIFIER LETTER APOSTROPHE}`", "'"),
    **dict.fromkeys("\N{NON-BREAKING HYPHEN}\N{HYPHEN}\N{FIGURE DASH}\N{EN DASH}", "-"),
    "\N{HORIZONTAL ELLIPSIS}": "...",
    "\N{FRACTION SLASH}": "/",
}  # fmt: skip
_TABLE: Final = str.maketrans(_SAME)
_NAMED: Final = frozenset(SYMBOLS)
_LETTER: Final = "[A-Za-z\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u024f\u1e00-\u1eff]"
"""Of Latin script, accents included."""
_WORD: Final = re.compile(rf"{_LETTER}+(?:['-]{_LETTER}+)*'?")

_LINK: Final = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
_POWERS: Final = re.compile(
    "[\N{SUPERSCRIPT ONE}\N{SUPERSCRIPT TWO}\N{SUPERSCRIPT THREE}\N{SUPERSCRIPT ZERO}\u2074-\u2079]+"
)
_HEAD: Final = re.compile(r"^\s*(?:#{1,6}\s+|>\s+|[-*+\N{BULLET}]\s+)+")
_ADDRESS: Final = re.compile(
    r"(?:https?://|www\.)[^\s<>\"]*[\w/]|(?<![\w.+-])[\w.+-]+@[\w-]+(?:\.[\w-]+)+|(?<![\w.-])[a-z0-9-]+(?:\.[a-z0-9-]+)*\."
    r"(?:com|org|net|edu|gov|io|dev|ai|de|uk|eu)\b(?:/[^\s<>\"]*[\w/])?"
)
_ADDRESS_WORDS: Final = {
    ".": "dot", "/": "slash", "@": "at", "-": "dash", "_": "underscore", ":": "colon", "?": "question mark", "=": "equals",
    "&": "and", "#": "hash", "+": "plus", "%": "percent", "~": "tilde",
}  # fmt: skip
_SPELLED: Final = frozenset({"www", "uk", "eu", "io", "ai", "html", "http", "https", "edu", "php", "de"})


@dataclass(frozen=True, slots=True)
class Reading:
    """Attributes:
    text: Words of letters, apostrophes and hyphens, and `MARKS` and `DASH` after them.
    unspoken: Characters that nothing is said for.
    """

    text: str
    unspoken: str


def normalize(line: str) -> Reading:
    """What is said of one line."""
    text = _plain(line)
    text = _ADDRESS.sub(_address, text)
    text = expand(text)
    text = _separated(text)
    for expression, read in RULES:
        text = expression.sub(lambda found: f" {read(found)} ", text)  # noqa: B023 - used at once
    return _words_and_marks(text)


def _plain(line: str) -> str:
    """Characters with one meaning as one, and without the signs of Markdown."""
    text = _HEAD.sub("", _LINK.sub(r"\1", unicodedata.normalize("NFC", line)))
    text = re.sub(r"(\*\*|__|``?`?)", "", text)
    text = re.sub(r"(?<!\w)([*_])(?=\S)([^*_]+)(?<=\S)\1(?!\w)", r"\2", text)
    text = _POWERS.sub(_power, _fractions(text)).translate(_TABLE)
    text = "".join(character for character in text if unicodedata.category(character) != "Cf")
    return re.sub(r"(?<=\s)--?(?=\s)|(?<=\w)---?(?=\w)", DASH, re.sub(r"\s+", " ", text)).strip()


def _fractions(text: str) -> str:
    """Signs like one half, which Unicode has in one character, in several; a space before, if a digit stands there."""
    pieces: list[str] = []
    for character in text:
        one = unicodedata.normalize("NFKC", character)
        if "\N{FRACTION SLASH}" not in one:
            one = character
        pieces.append(f" {one}" if one != character and pieces and pieces[-1].isdigit() else one)
    return "".join(pieces)


def _power(found: re.Match[str]) -> str:
    exponent = unicodedata.normalize("NFKC", found[0])
    return {"2": " squared ", "3": " cubed "}.get(exponent, f" to the power of {exponent} ")


def _address(found: re.Match[str]) -> str:
    """An address of the web or of mail, as it is dictated."""
    text = re.sub(r"^https?://", "", found[0]).rstrip("/")
    said = []
    for piece in re.findall(r"[^\W\d_]+|\d+|.", text):
        if piece.isdigit():
            said.append(cardinal(piece) if len(piece) < 3 else spelled(piece))
        elif piece.isalpha():
            said.append(lettered(piece) if piece.lower() in _SPELLED else piece)
        else:
            said.append(_ADDRESS_WORDS.get(piece, ""))
    return " ".join(said)


def _separated(text: str) -> str:
    """Letters apart from digits where they make no number together: "B2B", "MP3", "COVID-19"."""
    text = re.sub(r"(?<=[A-Za-z])-(?=\d)", " ", text)
    text = re.sub(r"(?<![A-Za-z\d.,])([A-Za-z]+)(?=\d)", r"\1 ", text)
    return re.sub(r"(?<=[A-Za-z] )(\d+)(?=[A-Z])", r"\1 ", text)


def _words_and_marks(text: str) -> Reading:
    said: list[str] = []
    unspoken: list[str] = []
    at = 0
    while at < len(text):
        word = _WORD.match(text, at)
        if word is not None:
            said.append(f" {word[0]} ")
            at = word.end()
            continue
        mark = _mark(text[at])
        if mark is None:
            unspoken.append(text[at])
        elif mark:
            said.append(mark)
        at += 1
    return Reading(_tidy("".join(said)), "".join(dict.fromkeys(unspoken)))


def _mark(character: str) -> str | None:
    """What stands for a character between words; "" for what only separates them, None for what has no sound."""
    if character in MARKS or character == DASH:
        return character
    if character in "()[]{}|":
        return ","
    if character in _NAMED:
        return f" {SYMBOLS[character]} "
    if (name := unicodedata.name(character, "")).startswith("GREEK ") and " LETTER " in name:
        return f" {name.split(' LETTER ')[1].split()[0].lower()} "
    if character == "/":
        return " slash "
    if (
        character.isspace()
        or character in "\"'-_*"
        or unicodedata.category(character) in ("Pi", "Pf", "Ps", "Pe", "Mn")
    ):
        return " "
    if character.isdigit():
        digit = unicodedata.digit(character, None)
        return None if digit is None else f" {cardinal(str(digit))} "
    return None


def _tidy(text: str) -> str:
    """One space between words, none before a mark, and of several marks the strongest."""
    text = re.sub(r"\s+", " ", text)
    text = re.sub(rf" ?([{MARKS}{DASH}][{MARKS}{DASH} ]*)", lambda found: f"{_strongest(found[1])} ", text)
    return re.sub(rf"^[{MARKS}{DASH} ]+", "", text).strip()


def _strongest(marks: str) -> str:
    return next(mark for mark in f"?!.;:{DASH}," if mark in marks)
