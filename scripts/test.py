"""The whole test suite: `python -m scripts.test [PYTEST ARGUMENTS]`. One process a core; pytest's closing line is last.

Files go to the processes in their order, so tests/accept, whose few tests take longest, begins first, and no process is left
alone with it at the end.
Numeric libraries get one thread in each process, so that the processes do not fight over the cores.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    arguments = sys.argv[1:] or [f"-n{len(os.sched_getaffinity(0))}", "--dist=loadfile", "--no-loadscope-reorder"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-m", "pytest", "-q", *arguments]
    raise SystemExit(subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode)


if __name__ == "__main__":
    main()
