"""No setting is for show: each is read somewhere outside of the code that loads and documents settings."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from edgewise.core.settings import settings_fields
from edgewise.core.settings_schema import Settings

ROOT = Path(__file__).resolve().parents[2]
LOADERS = {"settings.py", "settings_schema.py", "settings_reference.py"}
SOURCES = "\n".join(path.read_text() for path in sorted(ROOT.glob("*/edgewise/**/*.py")) if path.name not in LOADERS)
SECTIONS = {
    name: "\n".join(
        path.read_text()
        for path in sorted(ROOT.glob("*/edgewise/**/*.py"))
        if f": {field.annotation.__name__}" in path.read_text()
    )
    for name, field in Settings.model_fields.items()
    if field.annotation is not None and field.annotation.__name__.endswith("Settings")
}
"""Sources that are given a section by itself, which they call `settings`."""
DERIVED = "\n".join(
    inspect.getsource(value.fget)
    for name, value in inspect.getmembers(Settings, lambda member: isinstance(member, property))
    if value.fget is not None and re.search(rf"\bsettings\.{name}\b", SOURCES)
)
"""Properties of the settings that are read elsewhere: what they read is read."""


@pytest.mark.parametrize("key", list(settings_fields()))
def test_it_is_read(key: str) -> None:
    section, _, name = key.rpartition(".")
    direct = re.search(rf"\b_?{section or 'settings'}\.{name}\b", SOURCES)
    derived = re.search(rf"\bself\.{key}\b", DERIVED)
    given = re.search(rf"\bsettings\.{name}\b", SECTIONS.get(section, ""))
    assert direct or derived or given, f"nothing reads `{key}`"
