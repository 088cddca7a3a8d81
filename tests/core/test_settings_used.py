"""No setting is for show: each is read somewhere outside of the code that loads and documents settings."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import pytest

from edgewise.core.settings import settings_fields
from edgewise.core.settings_schema import Settings

ROOT = Path(__file__).resolve().parents[2]
LOADERS = {"settings.py", "settings_schema.py", "settings_reference.py"}

Reads = frozenset[tuple[str, str]]


def reads(texts: Iterable[str]) -> Reads:
    """Every `one.other` in them."""
    return frozenset(pair for text in texts for pair in re.findall(r"\b(\w+)(?=\.(\w+))", text))


@cache
def sources() -> tuple[str, ...]:
    """Of the whole package but for what loads settings."""
    paths = sorted(ROOT.glob("*/edgewise/**/*.py"))
    return tuple(path.read_text() for path in paths if path.name not in LOADERS)


@cache
def everywhere() -> Reads:
    return reads(sources())


@cache
def given(section: str) -> Reads:
    """In sources that are given the section by itself, which they call `settings`."""
    field = Settings.model_fields.get(section)
    name = "" if field is None or field.annotation is None else field.annotation.__name__
    return reads(text for text in sources() if f": {name}" in text) if name.endswith("Settings") else frozenset()


@cache
def derived() -> str:
    """Properties of the settings that are read elsewhere: what they read is read."""
    return "\n".join(
        inspect.getsource(value.fget)
        for name, value in inspect.getmembers(Settings, lambda member: isinstance(member, property))
        if value.fget is not None and ("settings", name) in everywhere()
    )


@pytest.mark.parametrize("key", list(settings_fields()))
def test_it_is_read(key: str) -> None:
    section, _, name = key.rpartition(".")
    place = section.rpartition(".")[2] or "settings"
    direct = {(place, name), (f"_{place}", name)} & everywhere()
    indirect = re.search(rf"\bself\.{key}\b", derived())
    assert direct or indirect or ("settings", name) in given(section), f"nothing reads `{key}`"
