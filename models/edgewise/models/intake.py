"""Takes a user's own file into the blobs: by copying, or, where asked, by sharing blocks or the file itself."""

from __future__ import annotations

import fcntl
import os
import tempfile
from pathlib import Path
from typing import BinaryIO, Final, Literal, TypeAlias

from edgewise.core.errors import StorageError
from edgewise.core.files import own_like_parent
from edgewise.models.blobs import IMPORT_PREFIX, Blobs, hash_file
from edgewise.models.disk import storage_errors
from edgewise.models.manifest import StoredFile
from edgewise.models.progress import ProgressSink

How: TypeAlias = Literal["copy", "reflink", "hardlink"]

_FICLONE: Final = 0x40049409  # ioctl_ficlone(2): share all blocks of one file with another


def take(blobs: Blobs, source: Path, name: str, how: How, progress: ProgressSink) -> StoredFile:
    """Makes `source` a blob; the digest is that of the bytes that arrived.

    Args:
        blobs: With its lock held and its folders made.
        source: A regular file.
        name: Its logical name.
        how: See `Store.import_path`.
        progress: Told how far it is.

    Raises:
        StorageError: The disk refuses, or cannot link in the way asked for. Nothing is left behind.
    """
    temporary = Path(tempfile.mkdtemp(prefix=IMPORT_PREFIX, dir=blobs.partial)) / "file"
    try:
        with storage_errors(blobs.root, source.stat().st_size):
            digest = _bring(source, temporary, name, how, progress)
            file = StoredFile(name=name, sha256=digest, size=temporary.stat().st_size)
            own_like_parent(temporary)
            blobs.commit(temporary, file, seal=how != "hardlink")
    finally:
        temporary.unlink(missing_ok=True)
        temporary.parent.rmdir()
    return file


def _bring(source: Path, target: Path, name: str, how: How, progress: ProgressSink) -> str:
    return _copy(source, target, name, progress) if how == "copy" else _link(source, target, name, how, progress)


def _copy(source: Path, target: Path, name: str, progress: ProgressSink) -> str:
    with target.open("wb") as out:
        digest = hash_file(source, "copy", name, progress, copy=out.write)
        _sync(out)
    return digest


def _link(source: Path, target: Path, name: str, how: How, progress: ProgressSink) -> str:
    try:
        if how == "hardlink":
            target.hardlink_to(source)
        else:
            _reflink(source, target)
    except OSError as error:
        raise StorageError(
            f"{source} cannot be taken over as a {how} ({error.strerror}): it must lie on the store's file system, which "
            f"must support that. Import it without --link to copy it."
        ) from error
    return hash_file(target, "verify", name, progress)


def _reflink(source: Path, target: Path) -> None:
    with source.open("rb") as original, target.open("wb") as clone:
        fcntl.ioctl(clone.fileno(), _FICLONE, original.fileno())
        _sync(clone)


def _sync(out: BinaryIO) -> None:
    out.flush()
    os.fsync(out.fileno())
