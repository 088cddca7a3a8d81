"""`edgewise models gate`: what it prints, keeps and refuses, on a tiny model."""

from __future__ import annotations

import io
import json
import os
import pty
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from edgewise.cli.models_gate import gate_progress
from edgewise.models.tiny import make_tiny_model
from tests.cli.terminal import read_until

Run = Callable[..., "subprocess.CompletedProcess[str]"]
FEW = ("--tokens", "64", "--needle", "64")


def test_the_gate_of_a_model_is_measured_shown_and_kept(here: Run, tmp_path: Path) -> None:
    make_tiny_model(tmp_path / "tiny", context=256)
    assert here("models", "import", str(tmp_path / "tiny"), "--name", "tiny").returncode == 0
    done = here("models", "gate", "tiny", *FEW)
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()][:4] == ["FORMAT", "float32", "kv", "kv"]
    *steps, kept = done.stderr.splitlines()
    assert steps[0].startswith("  0% ")
    assert steps[-1] == "100% done"
    assert len(steps) < 20
    record = tmp_path / "home" / "models" / "gates"
    assert kept.startswith(f"64 positions read; kept in {record}")
    assert len(list(record.iterdir())) == 1


def test_json_alone_is_on_standard_output_and_refusals_name_the_limit(here: Run, tmp_path: Path) -> None:
    make_tiny_model(tmp_path / "tiny", context=256)
    assert here("models", "import", str(tmp_path / "tiny"), "--name", "tiny").returncode == 0
    done = here("models", "gate", "tiny", "--json", *FEW)
    assert done.stderr == ""
    assert json.loads(done.stdout)["positions"] == 64
    (tmp_path / "short.txt").write_text("Three words.")
    short = here("models", "gate", "tiny", "--text", str(tmp_path / "short.txt"))
    assert short.returncode == 2
    assert "at least 32 are needed" in short.stderr


def test_a_model_that_is_not_there_is_named(here: Run) -> None:
    done = here("models", "gate", "nothing")
    assert done.returncode == 5
    assert "nothing" in done.stderr


def test_lines_in_a_pipe_come_once_a_step() -> None:
    out = io.StringIO()
    with gate_progress(show=True, out=out) as tell:
        assert tell is not None
        for step, share in (("loading", 0.0), ("kv int8", 0.1), ("kv int8", 0.2), ("done", 1.0)):
            tell(step, share)
    assert out.getvalue() == "  0% loading\n 10% kv int8\n100% done\n"


def test_a_bar_keeps_to_the_width_of_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("TERM", "xterm")
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as out:
        with gate_progress(show=True, out=out) as tell:
            assert tell is not None
            tell("a step with a name that is longer than the whole terminal is wide", 0.5)
        out.write("END")
        out.flush()
        seen = read_until(ours, b"END").decode()
    os.close(ours)
    assert "50%" in seen
    assert seen.count("\n") <= 3
