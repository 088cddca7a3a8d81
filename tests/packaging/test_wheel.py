"""The wheel, the sdist and the editable install hold the same package, and it works away from the checkout."""

from __future__ import annotations

import shlex
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

import build_native

ROOT = Path(__file__).resolve().parents[2]
SOURCE_ROOTS = ("appliance", "edge", "cloud", "models", "kernels")
WALK = """
import importlib, importlib.util, pkgutil, edgewise
from pathlib import Path
names = [found.name for found in pkgutil.walk_packages(edgewise.__path__, "edgewise.")]
no_triton = importlib.util.find_spec("triton") is None  # it comes with torch for CUDA
left_out = ("__main__", ".migrations.env", ".libedgewise_native")  # the last is a library, which looks like a module
for_cuda = ("edgewise.kernels.triton.", "edgewise.models.decoder.cuda.")
for name in names:
    if not name.endswith(left_out) and not (no_triton and name.startswith(for_cuda)):
        importlib.import_module(name)
print(*sorted({str(Path(path)) for path in edgewise.__path__}))
print(*sorted({name.split(".")[1] for name in names}))
"""


def run(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run([*map(str, command)], cwd=cwd, check=False, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def build_wheel(source: Path, out: Path) -> Path:
    run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", out, source, cwd=out)
    (wheel,) = out.glob("edgewise-*.whl")
    return wheel


def quick_compiler(folder: Path) -> Path:
    """A C++ compiler that never optimizes: it takes the same sources, in a tenth of the time."""
    program = folder / "c++"
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(build_native.find_compiler())} "$@" -O0\n')
    program.chmod(0o755)
    return program


def packaged(wheel: Path) -> set[str]:
    """Files of the package in a wheel, without its metadata."""
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


def in_tree() -> set[str]:
    """Files of the package as the editable install sees them."""
    return {
        str(path.relative_to(ROOT / root))
        for root in SOURCE_ROOTS
        for path in (ROOT / root / "edgewise").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(ROOT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The python of a fresh environment that has the wheel, and this environment's packages less our editable install."""
    place = tmp_path_factory.mktemp("venv")
    venv.EnvBuilder(with_pip=False, symlinks=True).create(place)
    python = place / "bin" / "python"
    site = run(python, "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])", cwd=place).strip()
    # A path line does not make Python read the .pth files of that folder, so our own editable install stays out.
    Path(site, "dependencies.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    run(
        sys.executable,
        "-m",
        "pip",
        "--python",
        python,
        "install",
        "-q",
        "--no-deps",
        "--ignore-installed",
        wheel,
        cwd=place,
    )
    return python


def test_the_wheel_holds_what_the_editable_install_sees(wheel: Path) -> None:
    assert packaged(wheel) == in_tree()


def test_the_sdist_makes_the_same_wheel(wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", tmp_path, cwd=ROOT)
    (sdist,) = tmp_path.glob("edgewise-*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = archive.getnames()
        assert any(name.endswith("/LICENSE") for name in names)
        assert not [name for name in names if "/.venv/" in name or "__pycache__" in name]
    monkeypatch.setenv("CXX", str(quick_compiler(tmp_path)))
    again = build_wheel(sdist, tmp_path)
    assert packaged(again) == packaged(wheel)


def test_every_module_imports_away_from_the_checkout(installed: Path, tmp_path: Path) -> None:
    paths, packages = run(installed, "-c", WALK, cwd=tmp_path).splitlines()
    assert str(ROOT) not in paths
    assert {"api", "cli", "cloud", "core", "edge", "engine", "kernels", "models", "pipeline", "security"} <= set(
        packages.split()
    )


def test_the_command_works_away_from_the_checkout(installed: Path, tmp_path: Path) -> None:
    assert "serve" in run(installed.with_name("edgewise"), "--help", cwd=tmp_path)
    assert run(installed.with_name("edgewise"), "--version", cwd=tmp_path).startswith("edgewise 0.")


def test_it_is_typed_and_licensed(wheel: Path) -> None:
    names = packaged(wheel)
    packages = {name.split("/")[1] for name in names}
    assert {f"edgewise/{package}/py.typed" for package in packages} <= names
    assert "edgewise/__init__.py" not in names
    with zipfile.ZipFile(wheel) as archive:
        assert any(name.endswith("licenses/LICENSE") for name in archive.namelist())
