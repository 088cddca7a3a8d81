from __future__ import annotations

import json
from pathlib import Path

import pytest

from edgewise.cli.main import main
from edgewise.core.settings import settings_fields


def output(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    with pytest.raises(SystemExit) as ended:
        main(args)
    assert ended.value.code == 0
    return capsys.readouterr().out


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGEWISE_PORT", "9000")


def test_show(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "c.toml"
    file.write_text("[log]\nlevel = 'debug'")
    lines = output(capsys, "config", "show", "--config", str(file)).splitlines()
    rows = {line.split()[0]: line.split()[1:] for line in lines[1:]}
    assert set(rows) == set(settings_fields())
    assert rows["port"] == ["9000", "EDGEWISE_PORT"]
    assert rows["log.level"] == ['"debug"', str(file)]
    assert rows["engine.threads"] == ["unset", "default"]


def test_show_json(capsys: pytest.CaptureFixture[str]) -> None:
    shown = json.loads(output(capsys, "config", "show", "--json"))
    assert shown["settings"]["port"] == {"value": 9000, "origin": "EDGEWISE_PORT"}
    assert shown["settings"]["limits.request_timeout_s"] == {"value": None, "origin": "default"}
    assert list(shown["settings"]) == list(settings_fields())


def test_reference_and_example(capsys: pytest.CaptureFixture[str]) -> None:
    assert output(capsys, "config", "reference").startswith("# Configuration")
    assert "# port = 8400" in output(capsys, "config", "example")
