from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from edgewise.core.settings import env_name, load_settings, settings_fields
from edgewise.core.settings_reference import example_toml, markdown_reference

ROOT = Path(__file__).resolve().parents[2]


def test_generated_files_are_current() -> None:
    command = [sys.executable, "-m", "scripts.generate", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_setting_is_in_the_reference() -> None:
    text = markdown_reference()
    for key, field in settings_fields().items():
        assert env_name(key) in text
        assert str(field.description) in text


def test_the_example_changes_nothing_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "edgewise.toml"
    file.write_text(example_toml())
    assert set(load_settings(file, environ={}).origins.values()) == {"default"}


def test_every_line_of_the_example_can_be_put_in_force(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "edgewise.toml"
    active = re.sub(r"^# (\w+ = (?!\.\.\.).*)$", r"\1", example_toml(), flags=re.MULTILINE)
    file.write_text(active)
    loaded = load_settings(file, environ={})
    in_force = {key for key, origin in loaded.origins.items() if origin == str(file)}
    assert in_force == {key for key, field in settings_fields().items() if field.default is not None}
    assert loaded.settings == load_settings(None, environ={}, default_file=tmp_path / "none").settings


def test_chosen_values_are_in_force(tmp_path: Path) -> None:
    file = tmp_path / "edgewise.toml"
    file.write_text(example_toml({"home": "/srv/edgewise", "engine.threads": 2}))
    loaded = load_settings(file, environ={})
    assert (loaded.settings.home, loaded.settings.engine.threads) == (Path("/srv/edgewise"), 2)
    assert [key for key, origin in loaded.origins.items() if origin != "default"] == ["home", "engine.threads"]
