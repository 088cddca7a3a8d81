"""Every static check, each with its verdict: `python -m scripts.lint`. Exits 1 if any fails, after running all.

Style and defects (ruff), formatting (ruff), types (mypy, strict), import arrows (import-linter), code budget.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from scripts.check_style import OTHER_ROOTS, SOURCE_ROOTS

ROOT = Path(__file__).resolve().parents[1]
CHECKED = (*SOURCE_ROOTS, *OTHER_ROOTS)


def checks() -> dict[str, list[str]]:
    """Name of each check -> its command."""
    tools = Path(sys.executable).parent
    paths = [path for path in CHECKED if any((ROOT / path).rglob("*.py"))]
    return {
        "ruff check": [str(tools / "ruff"), "check", "--quiet", "."],
        "ruff format": [str(tools / "ruff"), "format", "--check", "--quiet", "."],
        "mypy": [str(tools / "mypy"), "--no-error-summary", *paths],
        "import arrows": [sys.executable, "-m", "scripts.check_imports"],
        "code budget": [sys.executable, "-m", "scripts.check_style"],
    }


def run(command: Sequence[str]) -> tuple[int, str, float]:
    """Exit code, output and seconds of a check."""
    began = time.monotonic()
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    return done.returncode, (done.stdout + done.stderr).rstrip(), time.monotonic() - began


def main() -> None:
    failed = []
    with ThreadPoolExecutor() as pool:  # the types take longest and one core: the others run beside them
        running = {name: pool.submit(run, command) for name, command in checks().items()}
        for name, check in running.items():
            code, output, seconds = check.result()
            print(f"lint: {name}: {'FAILED' if code else 'ok'} ({seconds:.0f} s)", flush=True)
            if code != 0:
                failed.append(name)
                print(output, flush=True)
    if failed:
        raise SystemExit(f"lint: failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
