"""Real speech for tests: models that hear, from the store that all runs share, and clips with what is said in them.

The clips are five sentences of a LibriVox reading in Debian's package pocketsphinx-testdata (BSD licence). Where neither the
package nor apt is there, tests that need them are skipped by name.
"""

from __future__ import annotations

import fcntl
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import pytest

from edgewise.models.catalog import load_catalog
from edgewise.models.sources.file import FileSource
from edgewise.models.store import Store
from tests.conftest import models_home

PACKAGE: Final = "pocketsphinx-testdata"
_PLACE: Final = Path("usr/share/pocketsphinx/test/data/librivox")
_TEXT: Final = re.compile(r"<s> (.*) </s> \((.*)\)")
_SLIP: Final = ("more a amiable", "more amiable")
"""What the package's transcription has and the reader does not say."""


@dataclass(frozen=True, slots=True)
class Clip:
    """A WAV file of 16 kHz, and what is said in it, in small letters without marks."""

    path: Path
    text: str

    @property
    def samples(self) -> npt.NDArray[np.float32]:
        whole: npt.NDArray[np.int16] = np.frombuffer(self.path.read_bytes()[44:], dtype="<i2")
        samples: npt.NDArray[np.float32] = whole.astype(np.float32) / np.float32(32_768)
        return samples


def librivox() -> list[Clip]:
    """The five clips; skips the test where they cannot be had."""
    folder = _folder()
    if folder is None:
        pytest.skip(f"no recordings: neither the package {PACKAGE} nor `apt-get download` is here")
    lines = [_TEXT.fullmatch(line.strip()) for line in (folder / "transcription").read_text().splitlines()]
    found = [(line[2], line[1].replace(*_SLIP)) for line in lines if line]
    return [Clip(folder / f"{name}.wav", text) for name, text in found]


def hearing_home(*names: str) -> Path:
    """A state directory with these models of the catalog, pulled on first use."""
    home = models_home() / "home"
    home.mkdir(parents=True, exist_ok=True)
    with (models_home() / "home.lock").open("w") as lock:  # several test processes may ask at once
        fcntl.flock(lock, fcntl.LOCK_EX)
        store = Store(home / "models")
        for name in names:
            store.pull(load_catalog().find(name))
    return home


def add_models(home: Path, *names: str) -> None:
    """Put models of the catalog into a state directory of their own, from the store that all runs share."""
    shared = Store(hearing_home(*names) / "models")
    for name in names:
        entry = load_catalog().find(name)
        paths = shared.resolve(name, entry.info.role).paths
        files = tuple(replace(item, sources=(FileSource(paths[item.file.name]),)) for item in entry.files)
        Store(home / "models", reserve_bytes=0).pull(replace(entry, files=files))


def words(text: str) -> str:
    """Small letters without marks, so that what is heard can be compared; numbers stay as they are written."""
    plain = re.sub(r"\bmr\b\.?", "mister", text.lower().replace("-", " "))
    return " ".join(re.sub(r"[^a-z0-9' ]", " ", plain).split())


def _folder() -> Path | None:
    installed, cached = Path("/") / _PLACE, models_home() / "recordings"
    for folder in (installed, cached):
        if (folder / "transcription").is_file():
            return folder
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        return None
    models_home().mkdir(parents=True, exist_ok=True)
    with (
        (models_home() / "recordings.lock").open("w") as lock,
        tempfile.TemporaryDirectory(dir=models_home()) as work,
    ):
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (cached / "transcription").is_file():
            fetched = subprocess.run(["apt-get", "download", "-q", PACKAGE], cwd=work, check=False, capture_output=True)
            packages = list(Path(work).glob("*.deb"))
            if fetched.returncode != 0 or not packages:
                return None
            subprocess.run(["dpkg-deb", "-x", str(packages[0]), work], check=True, capture_output=True)
            (Path(work) / _PLACE).rename(cached)
    return cached
