"""Reads TOML: the standard library's parser, which Python 3.10 does not have yet, or tomli, which is the same."""

from __future__ import annotations

import importlib
import sys
from typing import Any

_parser = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
_MAX_DOTS = 200
"""Of a line. The parser's memory grows with the square of the parts of a dotted key, which stands on one line."""


def parse_toml(text: str) -> dict[str, Any]:
    """Raises ValueError, with line and column where there is one, for text that is no TOML, or that no parser should be given."""
    for number, line in enumerate(text.splitlines(), 1):
        if line.count(".") > _MAX_DOTS:
            raise ValueError(f"line {number} has more than {_MAX_DOTS} dots; break it into several lines")
    try:
        document: dict[str, Any] = _parser.loads(text)
    except RecursionError:
        raise ValueError("arrays or tables are nested too deeply") from None
    return document
