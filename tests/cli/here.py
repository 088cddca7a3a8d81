"""The command line inside this process: a process of its own takes a third of a second, and two more where it needs torch."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
import torch

from edgewise.cli.main import main


def edgewise_here(home: Path, *args: str, stdin: str = "", **env: str) -> subprocess.CompletedProcess[str]:
    """What `edgewise ARGS` says with this state directory; keyword arguments are environment variables, `stdin` is its input."""
    out, err = io.StringIO(), io.StringIO()
    threads = torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patched, redirect_stdout(out), redirect_stderr(err):
        for name in [name for name in os.environ if name.startswith("EDGEWISE_")]:
            patched.delenv(name)
        for name, value in {"EDGEWISE_HOME": str(home), "COLUMNS": "200", **env}.items():
            patched.setenv(name, value)
        patched.setattr(sys, "stdin", io.StringIO(stdin))
        with pytest.raises(SystemExit) as ended:
            main(args)
    torch.set_num_threads(threads)  # an engine takes as many as it is told, for the whole process
    code = ended.value.code or 0
    assert isinstance(code, int), "the command must say what is wrong and end with a number"
    return subprocess.CompletedProcess(args, code, out.getvalue(), err.getvalue())
