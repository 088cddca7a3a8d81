"""One writer at a time in a model store, across processes and threads.

Unlike a general lock it never waits, and it can be taken on a disk that is completely full: removing a model must always
be possible there. The note of who holds it is therefore written only where there is room for it.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import ClassVar

from edgewise.core.errors import EdgewiseError
from edgewise.core.files import own_like_parent
from edgewise.models.disk import is_full, translate


class StoreBusy(EdgewiseError):
    """Another process is changing the model store; the message names its process id."""

    code: ClassVar[str] = "store_busy"
    http_status: ClassVar[int] = 409
    retryable: ClassVar[bool] = True


@contextmanager
def store_lock(path: Path) -> Iterator[None]:
    """Holds the lock file `path` (flock(2)); the kernel frees it when the holder ends, however it ends.

    Raises:
        StoreBusy: Somebody else holds it.
        StorageError: The file cannot be made or written.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise translate(error, path.parent) from error
    try:
        _take(descriptor, path)
        yield
    finally:
        os.close(descriptor)


def _take(descriptor: int, path: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip() or "unknown"
        raise StoreBusy(
            f"The model store {path.parent} is being changed by process {holder}: wait until it is done, or end it."
        ) from error
    except OSError as error:
        raise translate(error, path.parent) from error
    own_like_parent(path)
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    except OSError as error:
        if not is_full(error):
            raise translate(error, path.parent) from error
        with suppress(OSError):  # half a number would name the wrong process
            os.ftruncate(descriptor, 0)
