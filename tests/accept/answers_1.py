"""A fresh clone in an empty environment: one command gives a right answer, and the test suite passes."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from pathlib import Path

from tests.accept.line import Line, Verdict, main, progress

ROOT = Path(__file__).resolve().parents[2]
# How pip reaches its indexes, and certificates: facts of the network, not of the environment.
KEPT = re.compile(r"PATH|LANG|PIP_.*|SSL_.*|REQUESTS_CA_BUNDLE|(https?|no|all)_proxy|PYENV_.*", re.IGNORECASE)
MAKE_TIMEOUT_S = 3000


def empty_environment(home: Path) -> dict[str, str]:
    """Nothing of the caller's but the way to the network, and an empty home directory."""
    kept = {name: value for name, value in os.environ.items() if KEPT.fullmatch(name)}
    config = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return {**kept, "HOME": str(home), "XDG_CONFIG_HOME": config}


def make(clone: Path, home: Path, *targets: str) -> tuple[int, str]:
    """Run make in the clone; returns its exit code and output, which is also kept in a file beside the clone."""
    log = clone.parent / f"make-{targets[0]}.log"
    with log.open("w") as out:
        code = subprocess.run(
            ["make", *targets],
            cwd=clone,
            env=empty_environment(home),
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            timeout=MAKE_TIMEOUT_S,
        ).returncode
    return code, log.read_text(errors="replace")


def answer_in(output: str) -> str:
    """What was printed between the question and the figures."""
    found = re.search(r"^> What is the capital of France\?\n(.*?)^\d+ tokens, ", output, re.MULTILINE | re.DOTALL)
    return found[1].strip() if found else ""


def measure(count: int) -> Verdict:
    """Count 0 leaves `make test` out, which the test suite needs: it runs this line itself."""
    with tempfile.TemporaryDirectory(prefix="edgewise-clone-", ignore_cleanup_errors=True) as folder:
        clone, home = Path(folder, "clone"), Path(folder, "home")
        home.mkdir()
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True, timeout=300)
        progress("make run ONCE=1")
        code, output = make(clone, home, "run", "ONCE=1")
        answer = answer_in(output)
        took = re.search(r"^from start to answer: (.*)$", output, re.MULTILINE)
        figure = f"run: code {code}, {answer!r}, {took[1] if took else 'no time printed'}"
        passed = code == 0 and "Paris" in answer
        details = {"run": output[-4000:]}
        if count > 0:
            progress("make test")
            test_code, output = make(clone, home, "test")
            figure += f"; test: code {test_code}, {output.strip().rpartition(chr(10))[2]}"
            passed = passed and test_code == 0
            details["test"] = output[-4000:]
    return Verdict(figure=figure, passed=passed, details=details)


LINE = Line(
    number=1,
    title="Fresh clone, empty environment: make run ONCE=1 names Paris, make test passes",
    bar="code 0 with 'Paris'; make test code 0",
    count=1,
    small=0,
    measure=measure,
)

if __name__ == "__main__":
    main(LINE, "tests.accept.answers_1")
