"""A service with a console as a child process: it says its port in its first line, and is turned by lines that it reads."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[3]


class Child:
    """Attributes:
    url: Where it answers.
    first: The words of its first line.
    """

    def __init__(self, module: str, *args: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *args], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        self.first = self._process.stdout.readline().split()
        assert self.first, f"{module} ended at once"
        self.url = f"http://127.0.0.1:{self.first[0]}"

    def tell(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def end(self) -> int:
        """Its exit code; it is killed if it does not end when asked."""
        self._process.terminate()
        try:
            code = self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
        return code


@contextmanager
def child(module: str, *args: str) -> Iterator[Child]:
    started = Child(module, *args)
    try:
        yield started
    finally:
        started.end()
