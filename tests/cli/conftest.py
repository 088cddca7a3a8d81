"""Running the command line as a person would: a process of its own with an environment of its own; or, sooner, in this one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.cli.here import edgewise_here

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run `edgewise ARGS`; keyword arguments are environment variables, `stdin` is its input."""

    def call(*args: str, stdin: str = "", **env: str) -> subprocess.CompletedProcess[str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("EDGEWISE_")}
        return subprocess.run(
            [sys.executable, "-m", "edgewise.cli.main", *args],
            input=stdin,
            env={**kept, "EDGEWISE_HOME": str(tmp_path / "home"), "OMP_NUM_THREADS": "1", "COLUMNS": "200", **env},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    return call


@pytest.fixture
def here(tmp_path: Path) -> Run:
    """As `run`, inside this process."""
    return partial(edgewise_here, tmp_path / "home")
