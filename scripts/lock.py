"""Make requirements.lock anew: `python -m scripts.lock [--check]`.

One universal lock for Python 3.10 to 3.13 on x86-64 and aarch64: runtime, test, lint and build groups. Torch is pinned
here; pyproject.toml keeps the range. The CUDA libraries that torch's default build pulls are left out of the lock, since
torch pins them itself and a CPU build needs none. `--check` resolves the lock for the oldest and newest Python on both
architectures.
"""

from __future__ import annotations

import argparse
import importlib.util
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LOCK = ROOT / "requirements.lock"
TORCH = "2.13.0"
GROUPS = ("test", "lint", "build")
CUDA_ONLY = re.compile(r"^(nvidia-(?!ml-py)|cuda-|triton(?![a-z]))")
HEADER = """\
# Locked versions for `make install`: Python 3.10 to 3.13, x86-64 and aarch64. Made by `make lock`; do not edit.
# The CUDA libraries of torch's default build are not listed: torch pins them itself, and its CPU build needs none.
"""
TARGETS = tuple(
    (python, f"{machine}-manylinux_2_28") for python in ("3.10", "3.13") for machine in ("x86_64", "aarch64")
)


def uv(*args: str) -> str:
    """Run uv, installing it into this environment first if it is not there; returns what it prints."""
    if importlib.util.find_spec("uv") is None:
        subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "uv"], check=True)
    command = [sys.executable, "-m", "uv", "--quiet", *args]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"lock: '{' '.join(command[2:])}' failed:\n{done.stderr}")
    return done.stdout


def compile_lock() -> str:
    """The text of a fresh lock."""
    with tempfile.TemporaryDirectory() as folder:
        pins = Path(folder) / "pins.txt"
        pins.write_text(f"torch=={TORCH}\n")
        groups = [argument for group in GROUPS for argument in ("--group", group)]
        options = ("--universal", "--python-version", "3.10", "--no-header", "--no-annotate", "--constraint", str(pins))
        text = uv("pip", "compile", "pyproject.toml", *groups, *options)
    lines = [line for line in text.splitlines() if not CUDA_ONLY.match(line)]
    return HEADER + "\n".join(lines) + "\n"


def check_lock() -> None:
    """Resolve the lock for each target; raises SystemExit if one has no solution."""
    for python, platform in TARGETS:
        found = uv(
            "pip", "compile", str(LOCK), "--python-version", python, "--python-platform", platform, "--no-header"
        )
        count = sum(1 for line in found.splitlines() if "==" in line)
        print(f"lock: Python {python} on {platform}: resolves, {count} packages (torch's CUDA libraries included)")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="only check that the lock resolves")
    args = parser.parse_args()
    if not args.check:
        LOCK.write_text(compile_lock())
        print(f"lock: wrote {LOCK.name}")
    check_lock()


if __name__ == "__main__":
    main()
