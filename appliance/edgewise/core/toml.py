"""Reads TOML: the standard library's parser, which Python 3.10 does not have yet, or tomli, which is the same."""

from __future__ import annotations

import importlib
import sys
from typing import Any

_parser = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")


def parse_toml(text: str) -> dict[str, Any]:
    """Raises ValueError, with line and column, for text that is no TOML."""
    document: dict[str, Any] = _parser.loads(text)
    return document
