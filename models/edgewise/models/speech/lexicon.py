"""Pronunciations of English words by misaki's dictionaries (github.com/hexgrad/misaki, Apache-2.0), which are read as data.

Its alphabet is the International Phonetic Alphabet with one letter for each diphthong and affricate: A I O W Y are the vowels of
"day", "my", "go", "now", "boy". How inflected forms follow from their stems is as in misaki's `en.py`.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeAlias

from edgewise.core.errors import BadModelFile
from edgewise.models.speech.letters import sound_out, stressed

Entry: TypeAlias = str | Mapping[str, str | None]
"""Phonemes, or phonemes by the word's part in its sentence, "DEFAULT" among them."""

PRIMARY: Final = "\N{MODIFIER LETTER VERTICAL LINE}"
SECONDARY: Final = "\N{MODIFIER LETTER LOW VERTICAL LINE}"
_FLAP: Final = "\u027e"
_WEAK: Final = "\u1d7b"
_BEFORE_FLAP: Final = frozenset("AIOWYiu\u00e6\u0251\u0259\u025b\u026a\u0279\u028a\u028c")
_HISSING: Final = frozenset("sz\u0283\u0292\u02a7\u02a4")
_VOICELESS: Final = frozenset("ptkf\u03b8")
_SHORTEST_PART: Final = 3
_LONGEST: Final = 40
_PREFIXES: Final = (
    "counter",
    "under",
    "inter",
    "super",
    "micro",
    "multi",
    "over",
    "anti",
    "fore",
    "mis",
    "non",
    "out",
    "pre",
    "sub",
    "un",
    "re",
)


class Lexicon:
    """Args:
    entries: By word; those of small letters hold for the same word with a capital one.
    """

    def __init__(self, entries: Mapping[str, Entry]) -> None:
        self._entries = entries

    def __len__(self) -> int:
        return len(self._entries)

    def pronounce(self, word: str, part: str = "DEFAULT") -> str:
        """Phonemes of a word of letters, apostrophes and hyphens; what nobody has written down is sounded out.

        Args:
            part: The word's part in its sentence, as the dictionary calls it: "VERB", "NOUN", "ADJ", "VBD", "None".
        """
        word = word.strip("'-") or word
        if len(word) > _LONGEST:  # no word: the rules' time grows with the square of its length
            return "".join(self.pronounce(word[at : at + _LONGEST]) for at in range(0, len(word), _LONGEST))
        found = self._known(word, part)
        if found is not None:
            return found
        pieces = [piece for piece in word.split("-") if piece]
        if len(pieces) > 1:
            if all(len(piece) == 1 for piece in pieces):
                return self.letters("".join(pieces))
            return "".join(self.pronounce(piece) for piece in pieces)
        plain = without_accents(word)
        if plain != word:
            return self.pronounce(plain, part)
        if (word.isupper() and len(word) > 1) or not any(letter in "aeiouy" for letter in word.lower()):
            return self.letters(word)
        return self._joined(word.lower()) or sound_out(word.lower().replace("'", ""))

    def letters(self, word: str) -> str:
        """The names of a word's letters, the last one stressed: "U S A"."""
        names = [self.lookup(letter.upper(), "DEFAULT") or "" for letter in word if letter.isalpha()]
        weak = "".join(name.replace(PRIMARY, SECONDARY) for name in names[:-1])
        return weak + stressed(names[-1].replace(SECONDARY, PRIMARY)) if names else ""

    def lookup(self, word: str, part: str) -> str | None:
        """As it stands in the dictionary, with a capital letter or without."""
        for form in (word, word.lower(), word.capitalize()):
            entry = self._entries.get(form)
            if entry is not None:
                return entry if isinstance(entry, str) else entry.get(part) or entry["DEFAULT"]
        return None

    def _known(self, word: str, part: str) -> str | None:
        if len(word) == 1 and word.isalpha():
            return self.lookup(word.upper(), part)
        found = self.lookup(word, part)
        if found is None and not (word.isupper() and len(word) < 4):
            found = self._inflected(word.lower(), part)
        return found

    def _inflected(self, word: str, part: str) -> str | None:
        """A stem of the dictionary with an ending."""
        for ending, stems, join in _ENDINGS:
            if word.endswith(ending) and len(word) > len(ending) + 1:
                for stem in stems(word):
                    found = self.lookup(stem, part)
                    if found:
                        return join(found)
        return None

    def _joined(self, word: str) -> str | None:
        """Two words of the dictionary that stand together, or one behind a prefix; of several cuts the most even."""
        cuts = sorted(range(_SHORTEST_PART, len(word) - _SHORTEST_PART + 1), key=lambda at: abs(2 * at - len(word)))
        for at in cuts:
            first, second = self._known(word[:at], "DEFAULT"), self._known(word[at:], "DEFAULT")
            if first and second and PRIMARY in first + second:
                return first + second.replace(PRIMARY, SECONDARY)
        for prefix in _PREFIXES:
            rest = self._known(word[len(prefix) :], "DEFAULT") if word.startswith(prefix) else None
            if rest and len(word) > len(prefix) + _SHORTEST_PART:
                return sound_out(prefix).replace(PRIMARY, SECONDARY) + rest
        return None


def read_lexicon(preferred: Path, others: Path) -> Lexicon:
    """Raises `BadModelFile` if a file is no dictionary."""
    entries: dict[str, Entry] = {}
    for path in (others, preferred):
        try:
            found = json.loads(path.read_text("utf-8"))
            entries |= {word: entry for word, entry in found.items() if isinstance(entry, str) or entry["DEFAULT"]}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise BadModelFile(f"{path.name} is no dictionary ({error!r}): pull the model again.") from error
    return Lexicon(entries)


def without_accents(word: str) -> str:
    return "".join(one for one in unicodedata.normalize("NFKD", word) if not unicodedata.combining(one))


def _s(stem: str) -> str:
    if stem[-1] in _VOICELESS:
        return stem + "s"
    return stem + (f"{_WEAK}z" if stem[-1] in _HISSING else "z")


def _ed(stem: str) -> str:
    if stem[-1] == "d":
        return f"{stem}{_WEAK}d"
    if stem[-1] == "t":
        return f"{_flapped(stem)}{_WEAK}d"
    return stem + ("t" if stem[-1] in "pkf\u03b8\u0283s\u02a7" else "d")


def _flapped(stem: str) -> str:
    """Before a vowel an American "t" after one becomes a tap."""
    return stem[:-1] + _FLAP if stem[-1] == "t" and stem[-2:-1] in _BEFORE_FLAP else stem


def _with(ending: str) -> Callable[[str], str]:
    return lambda stem: (_flapped(stem) if ending[0] in "\u026a\u0259i" else stem) + ending


def _stems_s(word: str) -> Sequence[str]:
    stems = [word[:-1]] if not word.endswith("ss") else []
    if word.endswith("ies"):
        stems.append(word[:-3] + "y")
    elif word.endswith(("es", "'s")):
        stems.append(word[:-2])
    return stems


def _stems(length: int) -> Callable[[str], Sequence[str]]:
    """Stems before an ending that begins with a vowel: as written, with "e", with one letter less of two, and "y" for "i"."""

    def stems(word: str) -> Sequence[str]:
        stem = word[:-length]
        found = [stem + "e", stem]
        if stem[-2:-1] == stem[-1:]:
            found.append(stem[:-1])
        if stem.endswith("i"):
            found.append(stem[:-1] + "y")
        return found

    return stems


_ENDINGS: Final[tuple[tuple[str, Callable[[str], Sequence[str]], Callable[[str], str]], ...]] = (
    ("s'", lambda word: [word[:-1], word[:-2]], lambda stem: stem if stem[-1] in _HISSING else _s(stem)),
    ("'s", lambda word: [word[:-2]], _s),
    ("s", _stems_s, _s),
    ("ed", _stems(2), _ed),
    ("ing", _stems(3), _with("\u026a\u014b")),
    ("er", _stems(2), _with("\u0259\u0279")),
    ("ers", _stems(3), _with("\u0259\u0279z")),
    ("est", _stems(3), _with("\u0259st")),
    ("ly", lambda word: [word[:-2], word[:-1] + "e"], _with("li")),
    ("ness", lambda word: [word[:-4]], _with("n\u0259s")),
    ("less", lambda word: [word[:-4]], _with("l\u0259s")),
    ("'ll", lambda word: [word[:-3]], _with("\u0259l")),
    ("'d", lambda word: [word[:-2]], _with("d")),
    ("'ve", lambda word: [word[:-3]], _with("\u0259v")),
    ("'re", lambda word: [word[:-3]], _with("\u0259\u0279")),
)
