"""C++ programs of the tests, compiled against the sources of the native kernels."""

from __future__ import annotations

import subprocess
from pathlib import Path

from build_native import SOURCES, find_compiler

HERE = Path(__file__).parent


def compiled(folder: Path, name: str, *flags: str, sources: tuple[str, ...] = (), compiler: str | None = None) -> Path:
    """The program `name`.cpp of this folder with some of the kernels' sources."""
    program = folder / name
    inputs = [HERE / f"{name}.cpp", *(SOURCES / source for source in sources)]
    command = [compiler or find_compiler(), "-std=c++17", "-O1", "-pthread", f"-I{SOURCES}", *flags]
    subprocess.run([*command, *map(str, inputs), "-o", str(program)], check=True, timeout=240)
    return program
