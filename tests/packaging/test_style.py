"""The code budget's checker names each kind of fault in a planted tree, and lets a clean one pass."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CLEAN = "def double(x: int) -> int:\n    return 2 * x\n"


def plant(tree: Path, name: str, text: str) -> None:
    path = tree / "appliance" / "edgewise" / "demo" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def check(tree: Path) -> tuple[int, str]:
    command = [sys.executable, "-m", "scripts.check_style", str(tree)]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True, timeout=600)
    assert not done.stderr
    return done.returncode, done.stdout


def function(lines: int) -> str:
    return "def long() -> None:\n" + "    print()\n" * lines


@pytest.mark.parametrize(
    ("files", "fault"),
    [
        ({"big.py": CLEAN + "\n" * 500}, "a file has at most 500"),
        ({"long.py": function(81)}, "long has 81 lines; a function has at most 80"),
        ({"relative.py": "from . import other\n" + CLEAN}, "relative.py:1: a relative import"),
        ({"share.py": function(51) + CLEAN}, "of functions are over 50 lines"),
        (
            {"a.py": "from edgewise.demo import b\n" + CLEAN, "b.py": "import edgewise.demo.a\n" + CLEAN},
            "edgewise.demo.a and edgewise.demo.b import each other",
        ),
        ({"inner.py": "def f() -> None:\n    import json\n"}, "of imports are inside functions"),
    ],
)
def test_each_fault_is_named(tmp_path: Path, files: dict[str, str], fault: str) -> None:
    for name, text in files.items():
        plant(tmp_path, name, text)
    code, output = check(tmp_path)
    assert code == 1
    assert fault in output


def test_a_clean_tree_passes(tmp_path: Path) -> None:
    plant(tmp_path, "clean.py", CLEAN)
    plant(
        tmp_path,
        "exact.py",
        CLEAN * 20 + '\n\ndef most() -> None:\n    """Docstrings do not count."""\n' + "    print()\n" * 50,
    )
    code, output = check(tmp_path)
    assert code == 0, output
