"""The command line inside this process: a process of its own takes a third of a second, and two more where it needs torch."""

from __future__ import annotations

import ctypes
import io
import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Literal

import pytest
import torch

from edgewise.cli.main import main

_LIBC = ctypes.CDLL(None)


def edgewise_here(home: Path, *args: str, stdin: str = "", **env: str) -> subprocess.CompletedProcess[str]:
    """What `edgewise ARGS` says with this state directory; keyword arguments are environment variables, `stdin` is its input.

    Both streams are taken where a shell would take them, so they have what libraries in C and child processes write too; and
    logging is as in a process that has just begun, where a warning goes to standard error. Warnings of Python are errors, as in
    every test.
    """
    threads = torch.get_num_threads()
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        with pytest.MonkeyPatch.context() as patched, _into(out, "stdout"), _into(err, "stderr"), _fresh_logging():
            for name in [name for name in os.environ if name.startswith("EDGEWISE_")]:
                patched.delenv(name)
            for name, value in {"EDGEWISE_HOME": str(home), "COLUMNS": "200", **env}.items():
                patched.setenv(name, value)
            patched.setattr(sys, "stdin", io.StringIO(stdin))
            with pytest.raises(SystemExit) as ended:
                main(args)
        said, complained = (_text(file) for file in (out, err))
    torch.set_num_threads(threads)  # an engine takes as many as it is told, for the whole process
    code = ended.value.code or 0
    assert isinstance(code, int), "the command must say what is wrong and end with a number"
    return subprocess.CompletedProcess(args, code, said, complained)


@contextmanager
def _into(file: IO[bytes], name: Literal["stdout", "stderr"]) -> Iterator[None]:
    """All that this process writes to a standard stream goes into a file."""
    number = {"stdout": 1, "stderr": 2}[name]
    before = getattr(sys, name)
    before.flush()
    _LIBC.fflush(None)
    kept = os.dup(number)
    os.dup2(file.fileno(), number)
    # Never closed: a library may keep it, as `logging.StreamHandler` does.
    stream = open(number, "w", encoding="utf-8", buffering=1, closefd=False)  # noqa: SIM115
    setattr(sys, name, stream)
    try:
        yield
    finally:
        stream.flush()
        _LIBC.fflush(None)
        setattr(sys, name, before)
        os.dup2(kept, number)
        os.close(kept)


@contextmanager
def _fresh_logging() -> Iterator[None]:
    """Without pytest's handlers, beside which `logging.lastResort` says nothing."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    root.handlers[:] = []
    root.setLevel(logging.WARNING)
    try:
        yield
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode()
