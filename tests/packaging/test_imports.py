"""The import arrows hold, and lint really fails when a wrong import is planted."""

from __future__ import annotations

import ast
import importlib
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
SOURCE_ROOTS = ("appliance", "edge", "cloud", "models", "kernels")
toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
BROUGHT = {
    "pydantic_core": "pydantic",
    "triton": "torch",
    "paho": "paho-mqtt",
    "PIL": "pillow",
    "argon2": "argon2-cffi",
    "pynvml": "nvidia-ml-py",
}
"""Modules that come with a distribution of another name, of the one version that fits it."""
RUN_OR_FOUND = {"iotcore", "jetson-stats", "onnxscript", "pip", "psycopg", "python-multipart", "tomli"}
"""Dependencies that no import statement names: imported by name where they are there, run as a program, used by another one."""

PLANTED = [
    ("appliance/edgewise/core/clock.py", "import edgewise.engine.request", "Imports point one way"),
    ("kernels/edgewise/kernels/paging.py", "import edgewise.models.files", "Imports point one way"),
    ("appliance/edgewise/pipeline/task.py", "import edgewise.api.fields", "Imports point one way"),
    ("appliance/edgewise/core/clock.py", "import torch", "core knows no torch"),
    ("kernels/edgewise/kernels/paging.py", "import edgewise.security.keys", "open to all but kernels"),
    ("appliance/edgewise/security/keys.py", "import edgewise.models.files", "open to all but kernels"),
    ("models/edgewise/models/files.py", "import fastapi", "kernels and models know no requests"),
    ("appliance/edgewise/engine/request.py", "import jinja2", "engine knows no HTTP"),
    ("appliance/edgewise/bench/work.py", "import edgewise.edge.app", "Imports point one way"),
    ("appliance/edgewise/pipeline/task.py", "import torch", "The service process never imports torch"),
    ("models/edgewise/models/files.py", "import torch", "The service process never imports torch"),
]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of the sources and their contracts."""
    for root in SOURCE_ROOTS:
        shutil.copytree(ROOT / root, tmp_path / root, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def check(tree: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "scripts.check_imports", str(tree)]
    return subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True, timeout=120)


def test_the_tree_as_it_is_keeps_the_arrows(tree: Path) -> None:
    done = check(tree)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(("file", "line", "contract"), PLANTED)
def test_a_planted_wrong_import_fails(tree: Path, file: str, line: str, contract: str) -> None:
    path = tree / file
    path.write_text(
        path.read_text().replace(
            "from __future__ import annotations\n", f"from __future__ import annotations\n{line}\n", 1
        )
    )
    assert line in path.read_text()
    done = check(tree)
    assert done.returncode == 1
    broken = [text for text in done.stdout.splitlines() if text.endswith("BROKEN")]
    assert any(contract in text for text in broken), done.stdout


@pytest.mark.parametrize("module", ["edgewise.edge.app", "edgewise.cli.main", "edgewise.engine.client"])
def test_the_service_process_does_not_load_torch(module: str) -> None:
    code = f"import sys, {module}; print(sorted({{'torch', 'transformers', 'tensorflow'}} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "[]"


def test_what_the_package_imports_is_what_it_depends_on() -> None:
    whole = toml.loads((ROOT / "pyproject.toml").read_text())
    project = whole["project"]
    builds = {canonicalize_name(Requirement(text).name) for text in whole["build-system"]["requires"]}
    texts = [*project["dependencies"], *(text for extra in project["optional-dependencies"].values() for text in extra)]
    declared = {canonicalize_name(Requirement(text).name) for text in texts}
    imported = {
        name.partition(".")[0]
        for root in SOURCE_ROOTS
        for path in (ROOT / root).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        for name in names_imported(node)
    } - {"edgewise", *sys.stdlib_module_names}
    found = {canonicalize_name(BROUGHT.get(name, name)) for name in imported}
    assert found - declared - builds == set()
    assert declared - found == RUN_OR_FOUND


def names_imported(node: ast.AST) -> list[str]:
    """Modules that a statement imports."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
