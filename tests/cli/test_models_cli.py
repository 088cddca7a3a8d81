"""`edgewise models` end to end, through the real settings; on a terminal in a process of its own."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from edgewise.core.sizes import file_size
from edgewise.models.catalog import BUILT_IN, SETS
from tests.cli.here import edgewise_here
from tests.fakes.gguf import gguf_bytes

MEMBERS = list(SETS["starter"])


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def catalogued(home: Path, tmp_path: Path) -> bytes:
    """A catalog entry `own` whose bytes lie on this disk."""
    body = gguf_bytes(os.urandom(50_000))
    (tmp_path / "own.gguf").write_bytes(body)
    folder = home / "catalog.d"
    folder.mkdir(parents=True)
    digest = hashlib.sha256(body).hexdigest()
    (folder / "own.toml").write_text(
        f'[[model]]\nname = "own"\ninfo = {{ role = "llm", format = "gguf", licence_model = "MIT", context = 4096 }}\n'
        f'[[model.files]]\nname = "own.gguf"\nsha256 = "{digest}"\nsize = {len(body)}\n'
        f'sources = [{{ url = "file://{tmp_path}/own.gguf" }}]\n'
    )
    return body


def models(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return edgewise_here(home, "models", *arguments)


def as_json(home: Path, *arguments: str, code: int = 0) -> Any:
    done = models(home, *arguments, "--json")
    assert done.returncode == code, done.stderr
    assert done.stderr == "", "no progress beside JSON"
    return json.loads(done.stdout)


def test_the_life_of_a_model_in_json(home: Path, catalogued: bytes) -> None:
    listed = as_json(home, "list")
    assert listed["installed"] == []
    assert [entry["name"] for entry in listed["available"]] == [*(entry.name for entry in BUILT_IN), "own"]
    assert listed["sets"] == {"starter": MEMBERS}
    (pulled,) = as_json(home, "pull", "own")["pulled"]
    assert (pulled["name"], pulled["size"], pulled["context"]) == ("own", len(catalogued), 4096)
    assert as_json(home, "list")["installed"] == [pulled]
    assert as_json(home, "show", "own") == {"installed": True, **pulled}
    assert as_json(home, "verify")["ok"] is True
    assert as_json(home, "rm", "own") == {"name": "own", "freed": len(catalogued)}
    assert as_json(home, "list")["installed"] == []


def test_a_set_stands_for_its_models(home: Path, catalogued: bytes, tmp_path: Path) -> None:
    absent = as_json(home, "show", "starter")
    assert absent == {"name": "starter", "installed": False, "members": MEMBERS}
    assert models(home, "rm", "starter").returncode == 5
    *others, last = MEMBERS
    for name in others:
        as_json(home, "import", str(tmp_path / "own.gguf"), "--name", name)
    assert as_json(home, "show", "starter")["installed"] is False
    as_json(home, "import", str(tmp_path / "own.gguf"), "--name", last)
    assert as_json(home, "show", "starter")["installed"] is True
    assert f"members    {', '.join(MEMBERS)}" in models(home, "show", "starter").stdout
    assert as_json(home, "rm", "starter") == {"name": "starter", "freed": len(catalogued)}, "they share one blob"
    assert as_json(home, "list")["installed"] == []


def test_text_has_plain_progress_lines_and_data_apart(home: Path, catalogued: bytes) -> None:
    done = models(home, "pull", "own")
    assert done.returncode == 0
    assert f"copy own.gguf: {file_size(len(catalogued))} of {file_size(len(catalogued))}\n" in done.stderr
    assert "\x1b" not in done.stdout + done.stderr
    assert "sha256:" in done.stdout
    listed = models(home, "list")
    assert not any(line.endswith(" ") for line in listed.stdout.splitlines()), "no padding in a pipe"
    assert f"`starter` stands for {', '.join(MEMBERS)}." in listed.stderr
    for arguments, expected in ((["list"], "installed"), (["show", "own"], "licence_model"), (["verify"], "ok")):
        text = models(home, *arguments)
        assert text.returncode == 0
        assert expected in text.stdout
        assert "own" in text.stdout


def test_what_whoever_pulls_a_model_must_know_is_shown(home: Path, catalogued: bytes) -> None:
    entry = home / "catalog.d" / "own.toml"
    entry.write_text(entry.read_text().replace("[[model]]\n", '[[model]]\nnotice = "not for products."\n', 1))
    assert "own: not for products.\n" in models(home, "pull", "own").stderr
    assert as_json(home, "pull", "own")["notices"] == ["own: not for products."]
    (joe,) = (one for one in BUILT_IN if one.name == "piper-joe")
    assert "espeak-ng" in joe.notice
    assert "research terms" in joe.notice


def test_verify_tells_damage_by_its_exit_code(home: Path, catalogued: bytes) -> None:
    as_json(home, "pull", "own")
    (blob,) = (home / "models" / "blobs" / "sha256").iterdir()
    blob.chmod(0o644)
    blob.write_bytes(catalogued[:-1] + b"?")
    report = as_json(home, "verify", "own", code=1)
    assert report["ok"] is False
    assert report["files"][0]["state"] == "damaged"
    assert as_json(home, "list")["leftover_bytes"] == len(catalogued)
    as_json(home, "pull", "own")
    assert as_json(home, "verify")["ok"] is True


def test_a_file_is_imported(home: Path, tmp_path: Path) -> None:
    (tmp_path / "Mine.gguf").write_bytes(gguf_bytes(b"mine"))
    done = as_json(home, "import", str(tmp_path / "Mine.gguf"), "--name", "mine", "--link", "hardlink")
    assert done["imported"]["name"] == "mine"
    assert done["left_out"] == []
    assert models(home, "import", str(tmp_path / "Mine.gguf"), "--name", "second").returncode == 0
    assert [model["name"] for model in as_json(home, "list")["installed"]] == ["mine", "second"]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["rm", "nope"], 5, "'nope' is not installed (installed: none)"),
        (["pull", "nope"], 5, "The catalog has no model 'nope'"),
        (["rm", "starter"], 5, "`edgewise models pull starter` installs it"),
        (["show", "nope"], 5, "The catalog has no model 'nope'"),
        (["verify", "nope"], 5, "is not installed"),
        (["pull", "../../x"], 2, "is not allowed"),
        (["rm", "%2e%2e/x"], 2, "is not allowed"),
        (["rm"], 2, "either the NAME of a model or --partial"),
        (["import", "/nonexistent"], 2, "is not there"),
        (["import", "/nonexistent", "--role", "king"], 2, "not one of llm,"),
    ],
)
def test_a_mistake_ends_with_a_sentence_and_a_code(arguments: list[str], code: int, message: str, home: Path) -> None:
    done = models(home, *arguments)
    assert done.returncode == code
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert not (home / "models").exists()


def test_the_catalogs_mistakes_are_named(home: Path, catalogued: bytes) -> None:
    (home / "catalog.d" / "bad.toml").write_text("[[model]]\nname = 'x'\n")
    done = models(home, "list")
    assert done.returncode == 4
    assert "bad.toml is refused: the key 'files' is missing" in done.stderr


def test_unfinished_downloads_are_shown_and_given_up(home: Path) -> None:
    (home / "models" / "partial").mkdir(parents=True)
    (home / "models" / "partial" / ("a" * 64)).write_bytes(b"x" * 2_000_000)
    assert "2.0 MB of unfinished or damaged files" in models(home, "list").stderr
    assert as_json(home, "rm", "--partial") == {"name": None, "freed": 2_000_000}


@pytest.mark.parametrize("columns", ["120", "50"])
def test_a_terminal_gets_bars_with_whole_figures(home: Path, catalogued: bytes, columns: str) -> None:
    script = "import pty, sys; sys.exit(pty.spawn([sys.executable, '-m', 'edgewise.cli.main', *sys.argv[1:]]) >> 8)"
    environment = {**os.environ, "EDGEWISE_HOME": str(home), "TERM": "xterm", "COLUMNS": columns}
    command = [sys.executable, "-c", script, "models", "pull", "own"]
    done = subprocess.run(
        command, env=environment, timeout=60, check=False, capture_output=True, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0
    assert "copy own.gguf" in done.stdout.decode()
    assert "━" in done.stdout.decode()
    assert re.search(r"[\d.]+/[\d.]+ (bytes|kB|MB)", done.stdout.decode())
