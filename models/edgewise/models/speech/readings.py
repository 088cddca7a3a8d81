"""How dates, times, money, measures and other written numbers are read: expressions and what is said for them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final

from edgewise.models.speech.abbreviations import MONTH, MONTHS, lettered
from edgewise.models.speech.numbers import cardinal, decimal, fraction, ordinal, plural, spelled, year

_NUMBER: Final = r"(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?|\.\d+"
_SCALE: Final = r"thousand|million|billion|trillion|[kMB]n?(?![A-Za-z])"
_SCALES: Final = {"k": "thousand", "m": "million", "b": "billion", "bn": "billion", "mn": "million"}
_COINS: Final[Mapping[str, tuple[str, str, str, str]]] = {
    "$": ("dollar", "dollars", "cent", "cents"),
    "\N{EURO SIGN}": ("euro", "euros", "cent", "cents"),
    "\N{POUND SIGN}": ("pound", "pounds", "penny", "pence"),
    "\N{YEN SIGN}": ("yen", "yen", "sen", "sen"),
}
_COIN: Final = "[" + "".join(_COINS) + "]"
_UNITS: Final[Mapping[str, tuple[str, str]]] = {
    "km/h": ("kilometer per hour", "kilometers per hour"), "kph": ("kilometer per hour", "kilometers per hour"),
    "mph": ("mile per hour", "miles per hour"), "m/s": ("meter per second", "meters per second"),
    "Mbit/s": ("megabit per second", "megabits per second"), "Mbps": ("megabit per second", "megabits per second"),
    "Gbps": ("gigabit per second", "gigabits per second"), "fps": ("frame per second", "frames per second"),
    "rpm": ("revolution per minute", "revolutions per minute"), "dpi": ("dot per inch", "dots per inch"),
    "km": ("kilometer", "kilometers"), "cm": ("centimeter", "centimeters"), "mm": ("millimeter", "millimeters"),
    "nm": ("nanometer", "nanometers"), "m": ("meter", "meters"), "ft": ("foot", "feet"), "mi": ("mile", "miles"),
    "yd": ("yard", "yards"), "kg": ("kilogram", "kilograms"), "mg": ("milligram", "milligrams"), "g": ("gram", "grams"),
    "lb": ("pound", "pounds"), "lbs": ("pound", "pounds"), "oz": ("ounce", "ounces"), "ml": ("milliliter", "milliliters"),
    "mL": ("milliliter", "milliliters"), "L": ("liter", "liters"), "l": ("liter", "liters"), "gal": ("gallon", "gallons"),
    "ms": ("millisecond", "milliseconds"), "ns": ("nanosecond", "nanoseconds"), "s": ("second", "seconds"),
    "sec": ("second", "seconds"), "min": ("minute", "minutes"), "yr": ("year", "years"),
    "yrs": ("year", "years"), "h": ("hour", "hours"), "hr": ("hour", "hours"),
    "hrs": ("hour", "hours"), "kB": ("kilobyte", "kilobytes"), "KB": ("kilobyte", "kilobytes"), "MB": ("megabyte", "megabytes"),
    "GB": ("gigabyte", "gigabytes"), "TB": ("terabyte", "terabytes"), "MiB": ("mebibyte", "mebibytes"),
    "GiB": ("gibibyte", "gibibytes"), "Hz": ("hertz", "hertz"), "kHz": ("kilohertz", "kilohertz"),
    "MHz": ("megahertz", "megahertz"), "GHz": ("gigahertz", "gigahertz"), "W": ("watt", "watts"), "kW": ("kilowatt", "kilowatts"),
    "kWh": ("kilowatt hour", "kilowatt hours"), "V": ("volt", "volts"),
    "mAh": ("milliampere hour", "milliampere hours"), "dB": ("decibel", "decibels"),
    "\N{DEGREE SIGN}C": ("degree Celsius", "degrees Celsius"), "\N{DEGREE SIGN}F": ("degree Fahrenheit", "degrees Fahrenheit"),
    "\N{DEGREE SIGN}": ("degree", "degrees"),
}  # fmt: skip
_UNIT: Final = "|".join(re.escape(unit) for unit in sorted(_UNITS, key=len, reverse=True))
_ROMAN: Final = {"I": 1, "V": 5, "X": 10, "L": 50, "C": 100}
_AMPM: Final = r"(?: ?([AaPp])[.-]?[Mm]\.?(?![A-Za-z]))"


def _digits(text: str) -> str:
    return text.replace(",", "")


def number(text: str) -> str:
    """ "1,234.5" in words."""
    whole, point, rest = _digits(text).partition(".")
    return decimal(whole, rest) if point else cardinal(whole)


def _count(text: str, one: str, many: str) -> str:
    return f"{number(text)} {one if _digits(text) == '1' else many}"


def _date(month: str, day: str, in_year: str | None) -> str:
    return f"{month} {ordinal(day)}" + (f", {_year(in_year)}" if in_year else "")


def _year(digits: str) -> str:
    return year(digits) if 1100 <= int(digits) <= 2099 else cardinal(digits)


def _month(text: str) -> str:
    return next(month for month in MONTHS if month.startswith(text.rstrip(".")[:3]))


def _iso_date(found: re.Match[str]) -> str:
    return _date(MONTHS[int(found[2]) - 1], found[3], found[1])


def _us_date(found: re.Match[str]) -> str:
    return _date(MONTHS[int(found[1]) - 1], found[2], found[3])


def _month_day(found: re.Match[str]) -> str:
    return _date(_month(found[1]), found[2], found[3])


def _day_month(found: re.Match[str]) -> str:
    return _date(_month(found[2]), found[1], found[3])


def _time(found: re.Match[str]) -> str:
    hour, minute, second, half = found[1], found[2], found[3], found[4]
    said = cardinal(str(int(hour)))
    if int(minute):
        said += f" {'oh ' if minute[0] == '0' else ''}{cardinal(str(int(minute)))}"
    elif not half and not second:
        said += " o'clock" if 1 <= int(hour) <= 12 else " hundred"
    if second:
        said += f" and {_count(str(int(second)), 'second', 'seconds')}"
    return said + _half(half, found)


def _hour(found: re.Match[str]) -> str:
    return cardinal(found[1]) + _half(found[2], found)


def _half(letter: str | None, found: re.Match[str]) -> str:
    """Its last period ends the sentence where a new one begins."""
    if not letter:
        return ""
    ends = found[0].endswith(".") and re.match(r"\s*$|\s+[A-Z]", found.string[found.end() :])
    return f" {lettered(letter + 'm')}{'.' if ends else ''}"


def _money(found: re.Match[str]) -> str:
    minus, coin, amount, scale = found[1], found[2], found[3], found[4]
    one, many, cent, cents = _COINS[coin]
    sign = "minus " if minus else ""
    whole, _, rest = _digits(amount).partition(".")
    if scale:
        return f"{sign}{number(amount)} {_SCALES.get(scale.lower(), scale)} {many}"
    if len(rest) != 2:
        return sign + _count(amount, one, many)
    parts = [_count(whole or "0", one, many)] if int(whole or "0") or not int(rest) else []
    parts += [_count(str(int(rest)), cent, cents)] if int(rest) else []
    return sign + " and ".join(parts)


def _percent(found: re.Match[str]) -> str:
    return f"{number(found[1])} percent"


def _measure(found: re.Match[str]) -> str:
    """ "20 km" has several of them, a "20-km run" does not."""
    one, many = _UNITS[found[3]]
    return _count(found[1], one, one if found[2] == "-" else many)


def _phone(found: re.Match[str]) -> str:
    """Digit by digit, a pause between groups."""
    groups = re.findall(r"\d+", found[0])
    return ("plus " if found[0].startswith("+") else "") + ", ".join(spelled(group) for group in groups)


def _dotted(found: re.Match[str]) -> str:
    return " point ".join(cardinal(part) for part in found[0].split("."))


def _decade(found: re.Match[str]) -> str:
    return plural(cardinal(found[2]) if found[1] is None else year(found[1] + found[2]))


def _fraction(found: re.Match[str]) -> str:
    whole = f"{cardinal(found[1])} and " if found[1] else ""
    if not int(found[3]):
        return found[0]
    return whole + fraction(found[2], found[3])


def _roman(found: re.Match[str]) -> str:
    values = [_ROMAN[letter] for letter in found[2]]
    total = sum(-one if one < after else one for one, after in zip(values, [*values[1:], 0], strict=True))
    return f"{found[1]} {cardinal(str(total))}"


def _plain(found: re.Match[str]) -> str:
    """A number that no other rule has taken."""
    text = found[1]
    return year(text) if re.fullmatch(r"1[1-9]\d\d|20\d\d", text) else number(text)


_DAY: Final = r"(0?[1-9]|[12]\d|3[01])"
RULES: Final[tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], str]], ...]] = tuple(
    (re.compile(expression), read)
    for expression, read in (
        (r"\d{22,}", lambda found: f" {spelled(found[0])} "),
        (rf"\b(\d{{4}})-(0[1-9]|1[0-2])-{_DAY}\b(?!-)", _iso_date),
        (rf"\b(0?[1-9]|1[0-2])/{_DAY}/(\d{{4}})\b", _us_date),
        (rf"\b({MONTH}) {_DAY}(?:st|nd|rd|th)?(?!\d|[.:]\d)(?:,? (\d{{4}})\b)?", _month_day),
        (rf"\b{_DAY}(?:st|nd|rd|th)?(?: of)? ({MONTH})(?![a-z])(?:,? (\d{{4}})\b)?", _day_month),
        (rf"\b([01]?\d|2[0-3]):([0-5]\d)(?::([0-5]\d))?(?!\d){_AMPM}?", _time),
        (rf"\b(1[0-2]|0?[1-9]){_AMPM}", _hour),
        (rf"(-)?(?:US)?({_COIN}) ?({_NUMBER})(?: ?({_SCALE}))?", _money),
        (r"(?<![\w.])\+\d{1,3}[ -]\(?\d{2,4}\)?(?:[ -]\d{2,4}){1,3}\b", _phone),
        (r"(?<!\w)\(?\d{3}\)?[ -]\d{3}-\d{4}\b|(?<![\w.,-])\d{3}-\d{4}\b", _phone),
        (r"\b\d+(?:\.\d+){2,}\b", _dotted),
        (r"\b(1[1-9]|20)?(\d0)'?s\b", _decade),
        (rf"({_NUMBER}) ?%", _percent),
        (r"\b24/7\b", lambda _: "twenty-four seven"),
        (r"(?<![\d/.,])(?:(\d+) )?(\d{1,2})/(\d{1,3})(?![\d/])", _fraction),
        (rf"(?<![\w.-])({_NUMBER}) ?- ?(?=(?:{_NUMBER})(?![\w-]))", lambda found: f"{found[1]} to "),
        (rf"(?<![\w.])({_NUMBER})([ -]?)({_UNIT})(?![A-Za-z0-9])", _measure),
        (r"\b(\d{1,3}(?:,\d{3})+|\d+)(?:st|nd|rd|th)\b", lambda found: ordinal(_digits(found[1]))),
        (r"\b(Chapter|Part|Section|Volume|Act|Book|Scene|War|Phase|Type|Class|Level) ([IVXLC]+)\b", _roman),
        (rf"(?<=\d)({_SCALE})\b", lambda found: f" {_SCALES.get(found[1].lower(), found[1])}"),
        (r"(?:(?<=\s)|^)[-\N{MINUS SIGN}](?=\.?\d)", lambda _: "minus "),
        (r"#(?=\d)", lambda _: "number "),
        (r"(?<=\d) ?[*\N{MULTIPLICATION SIGN}] ?(?=\d)", lambda _: " times "),
        (r"(?<=\d) ?x ?(?=\d)", lambda _: " by "),
        (rf"({_NUMBER})", lambda found: f" {_plain(found)} "),
    )
)
"""Tried one after the other over the whole text; those before take what those after would misread."""
