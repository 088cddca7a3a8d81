"""Versions in an order that a database can compare as text."""

from __future__ import annotations

import re

_PART = re.compile(r"\d+|[a-z]+")


def version_key(version: str) -> str:
    """A text that sorts as the version does: numbers as numbers, and a pre-release ("1.2rc1", "1.2.dev3") before its release.

    Trailing zeros do not count, as in PEP 440. What follows "+" is no part of the order. Only lower-case letters and digits are
    used, which every collation orders alike.
    """
    parts = _PART.findall(version.lower().lstrip("v").partition("+")[0])
    release = 0
    while release < len(parts) and parts[release].isdigit():
        release += 1
    numbers = parts[:release]
    while numbers and int(numbers[-1]) == 0:
        numbers.pop()
    rest = parts[release:]
    end = (
        "1" if not rest or rest[0] in ("post", "rev", "r") else "0"
    )  # the next number of a longer version begins with "2"
    tail = "".join(part[:8].zfill(8) if part.isdigit() else part for part in rest)
    return ("".join(f"2{int(number) % 10**8:08d}" for number in numbers) + end + tail)[:128]
