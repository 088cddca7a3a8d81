"""Files that survive a power cut: atomic synced writes, disk errors in words.

An atomic write goes to a temporary file in the target's folder, is synced, renamed over the target, and the folder is
synced: after a crash at any point a reader finds the old content or the new one, never a mixture (POSIX rename(2)).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from edgewise.core.errors import ConfigError, StorageError

_REMEDIES = {
    errno.ENOSPC: "the disk is full; free space or move EDGEWISE_HOME to a larger disk",
    errno.EDQUOT: "the disk quota is used up; free space or raise the quota",
    errno.EROFS: "the file system is read-only; remount it writable or set EDGEWISE_HOME to a writable folder",
    errno.EACCES: "permission denied; run as the owner of the folder or set EDGEWISE_HOME to a folder of your own",
    errno.EPERM: "operation not permitted; run as the owner of the folder or set EDGEWISE_HOME to a folder of your own",
    errno.EIO: "the disk reports a fault; check `dmesg` and replace the disk",
}


@contextlib.contextmanager
def translate_os_errors(action: str, path: Path) -> Iterator[None]:
    """Turn a disk's refusal into a `StorageError` that names the action, the path and the remedy.

    Args:
        action: What was being done, e.g. "write the model file".
        path: The file or folder concerned.

    Raises:
        StorageError: For full, read-only, forbidden and faulty disks. Every other `OSError` passes unchanged.
    """
    try:
        yield
    except OSError as error:
        remedy = _REMEDIES.get(error.errno or 0)
        if remedy is None:
            raise
        raise StorageError(f"cannot {action} {path}: {remedy}") from error


def make_folder(folder: Path, *, mode: int = 0o755) -> None:
    """Create a folder and its parents if they are missing.

    Raises:
        StorageError: The disk refuses, or a file stands in the way.
    """
    with translate_os_errors("create", folder):
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=mode)
        except (FileExistsError, NotADirectoryError) as error:
            raise StorageError(
                f"cannot create {folder}: a file stands in the way; move it or choose another"
            ) from error


def read_secret(path: Path, setting: str) -> str:
    """The line of a file that holds a key or password and nothing else.

    Args:
        setting: Dotted name of the setting that names the file, for the message.

    Raises:
        ConfigError: It cannot be read, is empty, or holds more.
    """
    try:
        lines = path.read_text("utf-8").split()
    except (OSError, ValueError) as error:
        raise ConfigError(f"`{setting}`: {path} cannot be read ({error}).", param=setting) from error
    if len(lines) != 1:
        raise ConfigError(f"`{setting}`: {path} must hold one word, the secret, and nothing else.", param=setting)
    return lines[0]


def fsync_dir(folder: Path) -> None:
    """Make renames and deletions in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def own_like_parent(path: Path) -> None:
    """When root creates a file inside a service user's folder, hand it to that user: the service must open it."""
    if os.geteuid() != 0:
        return
    parent = path.parent.stat()
    if (parent.st_uid, parent.st_gid) != (0, 0):
        os.chown(path, parent.st_uid, parent.st_gid)


@contextlib.contextmanager
def atomic_writer(path: Path, *, mode: int = 0o644) -> Iterator[BinaryIO]:
    """Write `path` as a whole or not at all.

    The file appears under its name, synced, when the block ends; if the block raises, nothing is left behind and the
    old file is untouched. The parent folder is created.

    Args:
        path: Target; replaced if it exists.
        mode: Permission bits of the new file.

    Raises:
        StorageError: The disk refuses.
    """
    with translate_os_errors("write", path):
        make_folder(path.parent)
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name[:100]}.", suffix=".tmp", dir=path.parent)
        temporary = Path(name)
        try:
            with os.fdopen(descriptor, "wb") as file:
                yield file
                file.flush()
                os.fchmod(file.fileno(), mode)
                os.fsync(file.fileno())
            own_like_parent(temporary)
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        fsync_dir(path.parent)


def atomic_write(path: Path, data: bytes | str, *, mode: int = 0o644) -> None:
    """Write `data` (text as UTF-8) to `path` atomically and durably; see `atomic_writer`."""
    with atomic_writer(path, mode=mode) as file:
        file.write(data.encode("utf-8") if isinstance(data, str) else data)


class FolderInUse(ConfigError):
    """Another process holds a folder, and may let it go."""

    retryable = True


@contextlib.contextmanager
def alone(folder: Path, name: str, what: str) -> Iterator[None]:
    """Hold a folder (made if missing) for one process: a second one would take work of this one for that of a dead one.

    Args:
        name: Of the lock's file, which stays. The kernel frees the lock of a process that dies.
        what: Who holds it, for the message.

    Raises:
        FolderInUse: Another process holds it.
        StorageError: The disk refuses.
    """
    make_folder(folder, mode=0o750)
    path = folder / name
    with translate_os_errors("open", path):
        file = path.open("a")
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise FolderInUse(
                f"another {what} uses {folder}: end it, or set EDGEWISE_HOME to a directory of its own"
            ) from error
        yield
