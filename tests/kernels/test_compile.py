"""Every kernel compiles for every capability that is served; no card is needed, Triton's own assembler does it."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("capability", [80, 87, 89, 90, 100, 101, 120])
def test_compiles_ahead(capability: int, tmp_path: Path) -> None:
    """In a process of its own: here Triton interprets."""
    environment = os.environ | {"TRITON_CACHE_DIR": str(tmp_path), "TRITON_INTERPRET": "0"}
    command = [sys.executable, "-m", "tests.kernels.compile_only", str(capability)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert f"sm_{capability} _decode" in done.stdout
