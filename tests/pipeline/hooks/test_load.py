"""Hooks by name: ours, and plug-ins of other distributions."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgewise.core.errors import ConfigError
from edgewise.pipeline.hooks.load import GROUP, load_hooks
from edgewise.pipeline.hooks.word_filter import WordFilter

PLUGIN = """
from edgewise.pipeline.hooks.protocol import Hook

class Mine(Hook):
    name = "mine"

    def __init__(self, setup):
        self.setup = setup

class Other:
    pass
"""


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installed distribution with three entry points, one of them broken, one no hook."""
    (tmp_path / "hook_of_a_test.py").write_text(PLUGIN)
    info = tmp_path / "hook_of_a_test-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: hook-of-a-test\nVersion: 1\n")
    points = "mine = hook_of_a_test:Mine\nother = hook_of_a_test:Other\nbroken = no_such_module:X\n"
    (info / "entry_points.txt").write_text(f"[{GROUP}]\n{points}")
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_a_plug_in_gets_its_own_options(plugin: Path) -> None:
    (plugin / "words.txt").write_text("a")
    entries = ["word-filter.file=words.txt", "mine.url=https://example.org/?a=b"]
    first, second = load_hooks(["mine", "word-filter"], entries, plugin)
    assert first.setup.options == {"url": "https://example.org/?a=b"}  # type: ignore[attr-defined]
    assert first.setup.home == plugin  # type: ignore[attr-defined]
    assert isinstance(second, WordFilter)


@pytest.mark.parametrize(
    ("enabled", "options", "match"),
    [
        (["nobody"], [], r"there is no hook 'nobody'\. Known: audit-log, broken, mine, other, word-filter"),
        (["broken"], [], "cannot be loaded"),
        (["other"], [], "is no class below"),
        (["mine"], ["mine"], "not of the form"),
        (["mine"], ["audit-log.text=yes"], "not in hooks"),
    ],
)
def test_mistakes_are_said_at_the_start(plugin: Path, enabled: list[str], options: list[str], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        load_hooks(enabled, options, plugin)


def test_nothing_is_enabled_by_default(tmp_path: Path) -> None:
    assert load_hooks([], [], tmp_path) == []
