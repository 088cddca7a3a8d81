"""Abbreviations and symbols in words."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Final

MONTHS: Final = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November", "December",
)  # fmt: skip
_SHORT_MONTHS: Final = {month[:3]: month for month in MONTHS if month != "May"} | {"Sept": "September"}
MONTH: Final = "|".join((*MONTHS, *(rf"{short}\.?" for short in (*_SHORT_MONTHS,))))
"""As an expression: any month, long or short."""

_TITLES: Final = {
    "Mr": "Mister", "Mrs": "Missus", "Ms": "Miz", "Dr": "Doctor", "Prof": "Professor", "Gen": "General", "Col": "Colonel",
    "Capt": "Captain", "Lt": "Lieutenant", "Sgt": "Sergeant", "Rev": "Reverend", "Gov": "Governor", "Sen": "Senator",
    "Rep": "Representative", "Pres": "President", "St": "Saint", "Mt": "Mount", "Ft": "Fort", "Hon": "Honorable",
}  # fmt: skip
"""Before a name; they end no sentence."""
_PLACES: Final = {
    "St": "Street", "Ave": "Avenue", "Blvd": "Boulevard", "Rd": "Road", "Dr": "Drive", "Ln": "Lane", "Hwy": "Highway",
    "Sq": "Square", "Pl": "Place",
}  # fmt: skip
"""After a name; they may end a sentence."""
_OTHERS: Final = {
    "Jr": "Junior", "Sr": "Senior", "Inc": "Incorporated", "Ltd": "Limited", "Corp": "Corporation", "Co": "Company",
    "etc": "et cetera", "approx": "approximately", "dept": "department", "Dept": "Department", "vs": "versus", "al": "al",
    "max": "maximum", "min": "minutes", "misc": "miscellaneous", **_SHORT_MONTHS,
}  # fmt: skip
"""With a period, which may end a sentence too."""
_INSIDE: Final = frozenset({"vs", "approx", *_SHORT_MONTHS})
"""Of these, the ones after which a sentence goes on whatever follows."""
_COUNTED: Final = {
    "No": "number", "Nos": "numbers", "fig": "figure", "Fig": "Figure", "vol": "volume", "Vol": "Volume", "p": "page",
    "pp": "pages", "ext": "extension", "tel": "telephone", "est": "established", "c": "circa", "ca": "circa", "sec": "section",
}  # fmt: skip
"""Before digits."""
_DAYS: Final = {
    "Mon": "Monday", "Tue": "Tuesday", "Tues": "Tuesday", "Wed": "Wednesday", "Thu": "Thursday", "Thurs": "Thursday",
    "Fri": "Friday", "Sat": "Saturday", "Sun": "Sunday",
}  # fmt: skip
"""Before a date."""

_NAME: Final = r"[A-Z][\w'-]*"
_ENDS: Final = r"(?=\s+[A-Z\"(]|\s*$)"
"""What follows where an abbreviation's period is a sentence's too."""
_LETTERS: Final = r"\b((?:[A-Za-z]\.){2,})" + f"({_ENDS})?"
_OPENERS: Final = frozenset({
    "A", "An", "And", "As", "At", "But", "By", "For", "From", "He", "Her", "His", "How", "I", "If", "In", "It", "Its", "My",
    "No", "On", "Our", "She", "So", "Some", "That", "The", "Their", "Then", "There", "These", "They", "This", "Those", "To",
    "We", "What", "When", "Where", "Which", "While", "Who", "Why", "With", "Yes", "You", "Your", "Dear", "Hello", "Hi",
    "Ask", "Tell", "Call", "See",
})  # fmt: skip
"""Words with a capital letter because a sentence begins."""

_LETTER_WORDS: Final = re.compile(r"\b(?:AI|ID|IT|US)\b(?!-[A-Z]\b)")
"""Words in small letters, or parts of words, that are others in capitals."""

SYMBOLS: Final[Mapping[str, str]] = {
    "&": "and", "+": "plus", "=": "equals", "@": "at", "%": "percent", "<": "less than", ">": "greater than", "~": "about",
    "\N{DEGREE SIGN}": "degrees", "\N{COPYRIGHT SIGN}": "copyright", "\N{REGISTERED SIGN}": "registered",
    "\N{TRADE MARK SIGN}": "trademark", "\N{MULTIPLICATION SIGN}": "times", "\N{DIVISION SIGN}": "divided by",
    "\N{PLUS-MINUS SIGN}": "plus or minus", "\N{NOT EQUAL TO}": "is not", "\N{LESS-THAN OR EQUAL TO}": "is at most",
    "\N{GREATER-THAN OR EQUAL TO}": "is at least", "\N{ALMOST EQUAL TO}": "is about", "\N{SECTION SIGN}": "section",
    "\N{MICRO SIGN}": "micro", "\N{SQUARE ROOT}": "square root of", "\N{INFINITY}": "infinity", "\N{MINUS SIGN}": "minus",
    "\N{RIGHTWARDS ARROW}": "to", "\N{NUMERO SIGN}": "number", "\N{POUND SIGN}": "pounds", "\N{EURO SIGN}": "euros",
    "\N{YEN SIGN}": "yen", "\N{CENT SIGN}": "cents", "$": "dollars", "#": "hash", "\\": "backslash", "^": "to the power of",
}  # fmt: skip
"""What a symbol is called where no rule has taken it before."""


def expand(text: str) -> str:
    """Abbreviations in full. A period that ends a sentence besides stays."""
    for expression, words in _EXPANSIONS:
        text = expression.sub(words, text)
    return text if text.isupper() else _LETTER_WORDS.sub(lambda found: lettered(found[0]), text)


def _place(found: re.Match[str]) -> str:
    name, short = found[1], found[2]
    return found[0] if name in _OPENERS else f"{name} {_PLACES[short]}{found[3]}"


def _other(found: re.Match[str]) -> str:
    ends = found[2] is not None and found[1] not in _INSIDE
    return _OTHERS[found[1]] + ("." if ends else "")


def _initials(found: re.Match[str]) -> str:
    """ "U.S." as "U-S", and "a.m." likewise."""
    return lettered(found[1].replace(".", "")) + ("." if found[2] is not None else "")


def lettered(word: str) -> str:
    """A word whose letters are named: joined by hyphens."""
    return "-".join(word.upper())


def _any(words: Iterable[str]) -> str:
    return "|".join(words)


_WHERE: Final = rf"\b({_NAME}|\d+(?:st|nd|rd|th)) ({_any(_PLACES)})"
_EXPANSIONS: Final[tuple[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]], ...]] = tuple(
    (re.compile(expression), words)
    for expression, words in (
        (r"\be\.g\.,?", "for example,"),
        (r"\bi\.e\.,?", "that is,"),
        (r"\b([Aa]nd)/or\b", r"\1 or"),
        (r"\bw/o\b", "without"),
        (r"\bw/ ?(?=\w)", "with "),
        (rf"\b({_any(_COUNTED)})\. ?(?=\d)", lambda found: f"{_COUNTED[found[1]]} "),
        (rf"\b({_any(_DAYS)})\.?(?=,? (?:{MONTH}|\d))", lambda found: _DAYS[found[1]]),
        (rf"{_WHERE}(\.)(?=\s*$|\s+(?:{_any(sorted(_OPENERS))})\b)", _place),
        (rf"{_WHERE}\.?()(?=,|\s+[a-z])", _place),
        (rf"\b({_any(_TITLES)})\.?(?= {_NAME})", lambda found: _TITLES[found[1]]),
        (r"\bDr\.(?= [a-z])", "Doctor"),
        (rf"\b({_any(_OTHERS)})\.(?!\w)({_ENDS})?", _other),
        (_LETTERS, _initials),
    )
)
