"""Make the virtual environment: torch by the rule below, the locked versions, then this package, editable.

Runs on the system's Python with nothing but the standard library. Quick when nothing changed: a stamp in the
environment holds the digest of everything that the installation depends on.

Which torch: with an NVIDIA GPU the default build. Without one, a CPU build that the user's own pip configuration offers
(`+cpu` in its indexes or link folders), else the one of PyTorch's CPU index if that can be reached, else the default
build, its size said first. `TORCH_INDEX=URL` overrides the rule.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
import venv
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LOCK = ROOT / "requirements.lock"
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
INPUTS = ("requirements.lock", "pyproject.toml", "scripts/install.py", "kernels/build_native.py")
NATIVE_SOURCES = "kernels/edgewise/kernels/native/src"  # compiled by the editable install
GIGABYTE = 10**9
STAMP = "edgewise-install.stamp"
OWN = ("appliance", "edge", "cloud", "models", "kernels", "scripts")
SELDOM = (
    *("tests", "transformers/models", "diffusers/pipelines", "diffusers/modular_pipelines", "torch/_inductor"),
    *("torch/testing/_internal", "ray/data", "ray/llm", "ray/rllib", "ray/train", "ray/tune", "sympy/physics"),
    *("sympy/parsing", "sympy/stats", "onnxruntime/transformers", "skimage", "imageio", "networkx", "docutils"),
    *("mypy", "mypyc", "setuptools", "pip"),
)
"""Folders of packages of which little or nothing is ever imported, yet two fifths of all: imports compile what they need."""


def say(text: str) -> None:
    print(f"install: {text}", flush=True)


def stamp_value(torch_index: str | None) -> str:
    """Digest of what the environment is made from: INPUTS, native sources, this Python, the place of the checkout."""
    native = os.environ.get("EDGEWISE_NO_NATIVE", "")
    digest = hashlib.sha256(f"{sys.version}\n{ROOT}\n{torch_index}\n{has_nvidia_gpu()}\n{native}".encode())
    for path in [*(ROOT / name for name in INPUTS), *sorted((ROOT / NATIVE_SOURCES).iterdir())]:
        digest.update(path.read_bytes())
    return digest.hexdigest()


def has_nvidia_gpu() -> bool:
    """A driver is loaded (desktop, server) or the board is a Jetson."""
    return Path("/proc/driver/nvidia/version").exists() or is_jetson()


def is_jetson() -> bool:
    return Path("/etc/nv_tegra_release").exists()


def run_with_signs_of_life(command: Sequence[str], every_s: float = 15.0) -> int:
    """Run a command that is silent while it works; says from time to time that it still does. Returns its exit code."""
    with subprocess.Popen(command) as process:
        return wait_with_signs_of_life(process, every_s)


def wait_with_signs_of_life(process: subprocess.Popen[bytes], every_s: float = 15.0) -> int:
    """Wait for the end of a process as `run_with_signs_of_life` does."""
    began = time.monotonic()
    while True:
        try:
            return process.wait(timeout=every_s)
        except subprocess.TimeoutExpired:
            say(f"  still at it after {time.monotonic() - began:.0f} s")


class Pip:
    """The environment's own pip, under the user's own configuration."""

    def __init__(self, python: Path) -> None:
        self._command = [str(python), "-m", "pip", "--disable-pip-version-check"]

    def install(self, *args: str) -> None:
        """Errors only: warnings are about the user's configuration, and pip repeats them for every package. Nothing is compiled
        to bytecode: pip does that on one core (`compiling`).

        Raises:
            SystemExit: pip failed; it has said why.
        """
        code = run_with_signs_of_life([*self._command, "install", "-qq", "--no-compile", *args])
        if code != 0:
            raise SystemExit(f"install: 'pip install {' '.join(args)}' failed with code {code}; its message is above.")

    def torch_versions(self) -> list[str]:
        """Versions of torch that pip's configured indexes and link folders offer for this Python, newest first."""
        found = subprocess.run(
            [*self._command, "index", "versions", "torch"], check=False, capture_output=True, text=True
        )
        listed = re.search(r"Available versions: (.*)", found.stdout)
        return [version.strip() for version in listed[1].split(",")] if listed else []

    def plan(self, *args: str) -> list[str]:
        """URLs of the files that `pip install ARGS` would fetch; empty if pip cannot tell."""
        command = [*self._command, "install", "--dry-run", "--quiet", "--report", "-", *args]
        found = subprocess.run(command, check=False, capture_output=True, text=True)
        if found.returncode != 0:
            return []
        return [item["download_info"]["url"] for item in json.loads(found.stdout)["install"]]


def locked_torch() -> str:
    """The torch version that the lock names."""
    found = re.search(r"^torch==([0-9.]+)", LOCK.read_text(), re.MULTILINE)
    if not found:
        raise SystemExit(f"install: {LOCK.name} names no torch version; make it again with 'make lock'.")
    return found[1]


def reachable(url: str, timeout_s: float = 5.0) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=timeout_s) as answer:  # noqa: S310 - a constant https address
            return bool(answer.status == 200)
    except OSError:
        return False


def total_bytes(urls: Sequence[str]) -> int | None:
    """Sum of the sizes that the servers state, or None if one does not."""
    total = 0
    for url in urls:
        request = urllib.request.Request(url, method="HEAD")  # noqa: S310 - addresses that pip itself would fetch
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310
                length = answer.headers.get("Content-Length")
        except OSError:
            return None
        if length is None:
            return None
        total += int(length)
    return total


def torch_arguments(pip: Pip, torch_index: str | None) -> list[str]:
    """What to give `pip install` for torch, by the module's rule; says what was decided and why."""
    version = locked_torch()
    exact = f"torch=={version}"
    if torch_index:
        say(f"torch {version} from TORCH_INDEX {torch_index}")
        return [exact, "--index-url", torch_index]
    if is_jetson():
        say("a Jetson: torch must come from NVIDIA's index for this JetPack (docs/operations.md); trying pip's own")
    if has_nvidia_gpu():
        say(f"torch {version}, the default build: an NVIDIA driver is here")
        return [f"torch==={version}"]  # '===' keeps a '+cpu' build in a link folder from winning
    if f"{version}+cpu" in pip.torch_versions():
        say(f"torch {version}+cpu: no GPU here, and pip's own indexes offer a CPU build")
        return [f"{exact}+cpu"]
    if reachable(f"{CPU_INDEX}/torch/"):
        say(f"torch {version}+cpu from {CPU_INDEX}: no GPU here")
        return [f"{exact}+cpu", "--extra-index-url", CPU_INDEX]
    size = total_bytes(pip.plan(exact, "--constraint", str(LOCK)))
    said = f"{size / GIGABYTE:.1f} GB" if size else "about 3 GB on x86-64 with the CUDA libraries"
    say(f"no GPU and no CPU build of torch {version} in reach: taking the default build, {said} to download")
    return [exact]


def installed_torch(python: Path) -> str | None:
    """The environment's torch version without importing it, or None."""
    code = "import importlib.metadata as m; print(m.version('torch'))"
    found = subprocess.run([str(python), "-c", code], check=False, capture_output=True, text=True)
    return found.stdout.strip() if found.returncode == 0 else None


def make_venv(path: Path) -> Path:
    """Create the environment unless a working one for this Python is there; returns its python."""
    python = path / "bin" / "python"
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    if python.exists():
        code = "import sys; print('%d.%d' % sys.version_info[:2])"
        found = subprocess.run([str(python), "-c", code], check=False, capture_output=True, text=True)
        if found.returncode == 0 and found.stdout.strip() == version:
            return python
        say(f"{path} is not a working Python {version} environment: making it anew")
        shutil.rmtree(path)
    say(f"making {path} with Python {platform.python_version()}")
    venv.EnvBuilder(with_pip=True, symlinks=True).create(path)
    return python


@contextmanager
def beside(command: Sequence[str], what: str, every_s: float = 15.0) -> Iterator[None]:
    """Run a command during the block, which takes one core, and wait for its end. Its output and its code are not looked at."""
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            yield
        except BaseException:
            process.terminate()
            raise
        if process.poll() is None:
            say(what)
        wait_with_signs_of_life(process, every_s)


def compiling_kernels() -> AbstractContextManager[None]:
    """Build the native kernels meanwhile. The package's own build then finds them made, or says what is wrong with them."""
    if os.environ.get("EDGEWISE_NO_NATIVE", "") not in ("", "0"):
        return nullcontext()
    return beside([sys.executable, str(ROOT / "kernels" / "build_native.py")], "native kernels")


def compiling(python: Path, *own: Path, every_s: float = 15.0) -> AbstractContextManager[None]:
    """Compile what is installed to bytecode on all cores meanwhile, but for folders named in SELDOM, and these of our own. What
    does not compile (templates, code for other versions of Python) is left, as pip leaves it: an import says why.
    """
    packages = python.parents[1] / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    # Searched for in whole paths: a checkout may lie in a folder of such a name.
    seldom = f"{re.escape(str(packages))}/(.*/)?({'|'.join(SELDOM)})/"
    command = [str(python), "-m", "compileall", "-qq", "-j", "0", "-x", seldom, str(packages), *map(str, own)]
    return beside(command, "bytecode of what is installed", every_s)


def install(venv_path: Path, torch_index: str | None) -> None:
    """Bring the environment up to the lock; does nothing when the stamp says that it is."""
    stamp = venv_path / STAMP
    wanted = stamp_value(torch_index)
    if stamp.exists() and stamp.read_text() == wanted:
        return
    began = time.monotonic()
    python = make_venv(venv_path)
    stamp.unlink(missing_ok=True)
    pip = Pip(python)
    with compiling_kernels():
        if (installed_torch(python) or "").partition("+")[0] != locked_torch():
            pip.install(*torch_arguments(pip, torch_index), "--constraint", str(LOCK))
        say("the locked versions (requirements.lock)")
        pip.install("--no-deps", "--requirement", str(LOCK))  # it names all that they need: nothing is resolved
    say("edgewise, editable")
    with compiling(python, *(ROOT / name for name in OWN)):
        pip.install("--no-deps", "--no-build-isolation", "--editable", str(ROOT))
    stamp.write_text(wanted)
    say(f"done in {time.monotonic() - began:.0f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--venv", type=Path, default=ROOT / ".venv")
    args = parser.parse_args()
    if not (3, 10) <= sys.version_info[:2] < (3, 14):
        raise SystemExit(f"install: Python 3.10 to 3.13 is needed, this is {platform.python_version()}.")
    install(args.venv.resolve(), os.environ.get("TORCH_INDEX") or None)


if __name__ == "__main__":
    main()
