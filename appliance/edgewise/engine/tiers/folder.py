"""The folder of the disk tier: one folder below it per model and numeric class, run files in those. Torch-free.

Any number of engines may use one folder at once, also with the same model: files are written under names of their own, never
changed, and whoever finds that the whole exceeds the limit removes the files that were used longest ago. A file that is gone is
a miss, never an error. `edgewise cache` and the service use the same functions, whether an engine runs or not.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from edgewise.core.files import atomic_write
from edgewise.engine.tiers.run_file import PART_SUFFIX, SUFFIX, is_orphan, key_digest

ABOUT = "about.json"


@dataclass(frozen=True, slots=True)
class StoredFile:
    path: Path
    size: int
    used_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredModel:
    """What the folder holds of one model in one numeric class. `size` in bytes, `used_at` in seconds since the epoch."""

    model: str
    numeric_class: str
    files: int
    size: int
    used_at: float


def key_of(model_digest: str, numeric_class: str, page_tokens: int, extra: str) -> str:
    """Everything that the bits of a stored page depend on: weights, kernels and formats, page size, tokenizer and template."""
    return "\n".join((model_digest, numeric_class, f"page {page_tokens}", extra))


def class_folder(root: Path, model_digest: str, key: str) -> Path:
    """Where pages of one key lie; the first part of the name is the model's."""
    return root / f"{_model_part(model_digest)}-{key_digest(key).hex()[:16]}"


def prepare(folder: Path, *, model: str, numeric_class: str) -> None:
    """Make a class folder (mode 0700) with a note for people of whose it is.

    Raises:
        OSError, StorageError: The disk refuses.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    note = folder / ABOUT
    if not note.exists():
        atomic_write(note, json.dumps({"model": model, "numeric_class": numeric_class}) + "\n", mode=0o600)


def files_in(folder: Path) -> list[StoredFile]:
    """Run files of one class folder, in any order; an empty list if it is not there."""
    return list(_files(folder, SUFFIX))


def all_files(root: Path) -> list[StoredFile]:
    """Run files of all models."""
    return [file for folder in _folders(root) for file in _files(folder, SUFFIX)]


def remove_orphans(root: Path) -> int:
    """Remove what writers that were killed have left unfinished; returns how many files that were."""
    now = time.time()
    parts = [part.path for folder in _folders(root) for part in _files(folder, PART_SUFFIX)]
    orphans = [part for part in parts if is_orphan(part, now)]
    for part in orphans:
        part.unlink(missing_ok=True)
    return len(orphans)


def make_room(root: Path, limit: int, wanted: int) -> tuple[list[Path], int]:
    """Remove the files used longest ago until `wanted` more bytes fit below `limit`; returns them and the bytes that remain."""
    files = sorted(all_files(root), key=lambda file: file.used_at)
    total = sum(file.size for file in files)
    removed: list[Path] = []
    for file in files:
        if total + wanted <= limit:
            break
        file.path.unlink(missing_ok=True)
        removed.append(file.path)
        total -= file.size
    return removed, total


def stored(root: Path) -> list[StoredModel]:
    """What there is, the most recently used first."""
    found = []
    for folder in _folders(root):
        files = files_in(folder)
        model, numeric_class = _about(folder)
        if files:
            found.append(
                StoredModel(
                    model=model,
                    numeric_class=numeric_class,
                    files=len(files),
                    size=sum(file.size for file in files),
                    used_at=max(file.used_at for file in files),
                )
            )
    return sorted(found, key=lambda item: -item.used_at)


def clear(root: Path, model: str | None = None) -> tuple[int, int]:
    """Remove all run files, or those of the model of that name; returns their number and bytes.

    Raises:
        OSError: The disk refuses.
    """
    count = size = 0
    for folder in _folders(root):
        if model is not None and _about(folder)[0] != model:
            continue
        for file in files_in(folder):
            file.path.unlink(missing_ok=True)
            count, size = count + 1, size + file.size
    return count, size


def _model_part(model_digest: str) -> str:
    return hashlib.blake2b(model_digest.encode(), digest_size=8).hexdigest()


def _folders(root: Path) -> Iterator[Path]:
    try:
        with os.scandir(root) as entries:
            folders = [Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)]
    except FileNotFoundError:
        return
    yield from folders


def _files(folder: Path, suffix: str) -> Iterator[StoredFile]:
    try:
        names = [name for name in os.listdir(folder) if name.endswith(suffix)]  # noqa: PTH208 - thousands of names
    except FileNotFoundError:
        return
    for name in names:
        path = folder / name
        try:
            found = path.stat(follow_symlinks=False)
        except FileNotFoundError:  # another engine has removed it
            continue
        if stat.S_ISREG(found.st_mode):
            yield StoredFile(path, found.st_size, found.st_mtime)


def _about(folder: Path) -> tuple[str, str]:
    """(model, numeric class) as the folder's note says; "unknown" where it is missing or damaged: it is for people only."""
    try:
        note = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
        return str(note["model"]), str(note["numeric_class"])
    except (OSError, ValueError, KeyError, TypeError):
        return "unknown", "unknown"
