"""What the model store asks of a file system: room, and a plain word when it refuses."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from edgewise.core.errors import StorageError
from edgewise.core.files import fsync_dir, own_like_parent

CHUNK: Final = 1 << 20

_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_CLOSED: Final = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})


def free_bytes(path: Path) -> int:
    """Bytes that an ordinary process may still write on the file system of `path`, which need not exist yet."""
    existing = path
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    stats = os.statvfs(existing)
    return stats.f_bavail * stats.f_frsize


def require_space(path: Path, needed: int, reserve: int) -> None:
    """Refuses work that the disk has no room for, before it begins.

    Args:
        path: Where the bytes will go.
        needed: Bytes to be written.
        reserve: Bytes that must stay free for the rest of the system.

    Raises:
        StorageError: Naming the bytes needed and free.
    """
    free = free_bytes(path)
    if needed and needed + reserve > free:
        raise StorageError(_full_message(path, needed, free, reserve))


@contextmanager
def storage_errors(path: Path, needed: int | None = None) -> Iterator[None]:
    """Translates `OSError` from the store's own files into `StorageError`, with the cause kept.

    Args:
        path: The store's folder, for the message.
        needed: Bytes still to be written, if known.
    """
    try:
        yield
    except OSError as error:
        raise translate(error, path, needed) from error


def translate(error: OSError, path: Path, needed: int | None = None) -> StorageError:
    """The `StorageError` for an `OSError`; it says whether the disk is full, read-only or faulty."""
    if error.errno in _FULL:
        return StorageError(_full_message(path, needed, free_bytes(path), 0))
    if error.errno in _CLOSED:
        return StorageError(
            f"{path} cannot be written ({error.strerror}): mount it writable, or give this user the folder."
        )
    return StorageError(f"{path} refuses: {error}.")


def is_full(error: OSError) -> bool:
    """Whether `error` says that disk, quota or file size limit is exhausted."""
    return error.errno in _FULL


def make_dirs(path: Path) -> None:
    """Creates `path` and its parents, each made durable in its parent and owned like it."""
    if path.is_dir():
        return
    make_dirs(path.parent)
    path.mkdir(exist_ok=True)
    own_like_parent(path)
    fsync_dir(path.parent)


def _full_message(path: Path, needed: int | None, free: int, reserve: int) -> str:
    kept = f", and {reserve} must stay free" if reserve else ""
    want = f"{needed} bytes are needed" if needed is not None else "More bytes are needed than there are"
    return f"The disk of {path} is full: {want}, {free} are free{kept}. Free some space, then try again."
