"""No setting is for show: each is read somewhere outside of the code that loads and documents settings."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from edgewise.core.settings import settings_fields

ROOT = Path(__file__).resolve().parents[2]
LOADERS = {"settings.py", "settings_schema.py", "settings_reference.py"}
SOURCES = "\n".join(path.read_text() for path in sorted(ROOT.glob("*/edgewise/**/*.py")) if path.name not in LOADERS)


@pytest.mark.parametrize("key", list(settings_fields()))
def test_it_is_read(key: str) -> None:
    section, _, name = key.rpartition(".")
    assert re.search(rf"\b_?{section or 'settings'}\.{name}\b", SOURCES), f"nothing reads `{key}`"
