"""Processes of our own modules."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from edgewise.core.python import module_command


@pytest.mark.parametrize("version", [(3, 10), (3, 11)])
def test_a_file_in_the_working_directory_is_not_taken_for_a_library(
    version: tuple[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "base64.py").write_text("raise SystemExit('the wrong file')")
    (tmp_path / "timeit.py").write_text("raise SystemExit('the wrong file')")
    monkeypatch.setattr("edgewise.core.python.sys.version_info", version)
    for module, flags in (("base64", ["-t"]), ("timeit", ["-n", "1", "pass"])):
        done = subprocess.run(
            [*module_command(module), *flags], cwd=tmp_path, check=False, capture_output=True, text=True
        )
        assert "the wrong file" not in done.stderr
        assert done.returncode == 0, done.stderr
