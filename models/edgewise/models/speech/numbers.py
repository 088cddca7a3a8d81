"""Numbers in English words, American style. All functions take digits as text, since "007" is not 7."""

from __future__ import annotations

from typing import Final

_ONES: Final = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve", "thirteen",
    "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
)  # fmt: skip
_TENS: Final = (
    "_", "_", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety",
)  # fmt: skip
_SCALES: Final = ("", "thousand", "million", "billion", "trillion", "quadrillion", "quintillion")
MAX_DIGITS: Final = 3 * len(_SCALES)
"""Longer numbers are read digit by digit."""

_ORDINALS: Final = {
    "one": "first",
    "two": "second",
    "three": "third",
    "five": "fifth",
    "eight": "eighth",
    "nine": "ninth",
    "twelve": "twelfth",
}


def cardinal(digits: str) -> str:
    """ "1234" as "one thousand two hundred thirty-four"; a number that begins with 0, or is very long, digit by digit."""
    if len(digits) > MAX_DIGITS or (len(digits) > 1 and digits[0] == "0"):
        return spelled(digits)
    if not int(digits):
        return _ONES[0]
    groups: list[str] = []
    rest, scale = int(digits), 0
    while rest:
        rest, group = divmod(rest, 1000)
        if group:
            groups.append(f"{_below_1000(group)} {_SCALES[scale]}".strip())
        scale += 1
    return " ".join(reversed(groups))


def ordinal(digits: str) -> str:
    """ "21" as "twenty-first"."""
    return _as_ordinal(cardinal(str(int(digits)) if digits else "0"))


def spelled(digits: str) -> str:
    """ "504" as "five zero four"."""
    return " ".join(_ONES[int(digit)] for digit in digits)


def decimal(whole: str, fraction: str) -> str:
    """ "3", "14" as "three point one four"; without a whole part "point one four"."""
    return f"{cardinal(whole) if whole else ''} point {spelled(fraction)}".strip()


def year(digits: str) -> str:
    """Four digits from 1100 to 2099 as people say years: "1984" as "nineteen eighty-four", "2005" as "two thousand five"."""
    century, rest = int(digits[:2]), int(digits[2:])
    if digits[1:3] == "00":
        return cardinal(digits)
    head = _below_1000(century)
    if not rest:
        return f"{head} hundred"
    return f"{head} oh {_ONES[rest]}" if rest < 10 else f"{head} {_below_1000(rest)}"


def plural(words: str) -> str:
    """The plural of a number's last word: "nineteen nineties", "twos", "sixes"."""
    if words.endswith("y"):
        return words[:-1] + "ies"
    return words + ("es" if words.endswith("x") else "s")


def fraction(above: str, below: str) -> str:
    """ "3", "4" as "three quarters"; what has no short name as "one over two hundred"."""
    if not 2 <= int(below) <= 20:
        return f"{cardinal(above)} over {cardinal(below)}"
    part = {2: "half", 4: "quarter"}.get(int(below)) or ordinal(below)
    if int(above) == 1:
        return f"one {part}"
    return f"{cardinal(above)} {'halves' if part == 'half' else part + 's'}"


def _below_1000(number: int) -> str:
    hundreds, rest = divmod(number, 100)
    words = [f"{_ONES[hundreds]} hundred"] if hundreds else []
    if rest >= 20:
        tens, ones = divmod(rest, 10)
        words.append(_TENS[tens] + (f"-{_ONES[ones]}" if ones else ""))
    elif rest:
        words.append(_ONES[rest])
    return " ".join(words)


def _as_ordinal(words: str) -> str:
    cut = max(words.rfind(" "), words.rfind("-")) + 1
    head, last = words[:cut], words[cut:]
    if last in _ORDINALS:
        return head + _ORDINALS[last]
    return head + (last[:-1] + "ieth" if last.endswith("y") else last + "th")
