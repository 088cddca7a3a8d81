"""Exact byte ranges of one file.

Ranges are read with pread rather than through a memory map: a map counts every touched page of the file as resident memory
of the process until it is unmapped (twice the weights while loading), and a file that shrinks under a map kills the process
with SIGBUS where a short read is an ordinary error.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from edgewise.core.errors import BadModelFile, StorageError


class RangeFile:
    """A regular file, opened for reading at given offsets. `name` is what errors call it (the path may be a digest)."""

    def __init__(self, path: Path, name: str) -> None:
        """Open the file.

        Raises:
            BadModelFile: Not a regular file.
            StorageError: It cannot be opened.
        """
        self.name = name
        self._fd = -1
        try:
            # O_NONBLOCK: opening a named pipe that nobody writes to must not hang the process.
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            status = os.fstat(self._fd)
        except OSError as error:
            self.close()
            raise StorageError(f"{name}: cannot be opened: {error.strerror}") from error
        if not stat.S_ISREG(status.st_mode):
            self.close()
            raise self.bad(0, "not a regular file")
        self.size = status.st_size

    def __repr__(self) -> str:
        return f"RangeFile({self.name!r}, {self.size} bytes, {'closed' if self._fd < 0 else 'open'})"

    def bad(self, offset: int, what: str) -> BadModelFile:
        """The error that says what is wrong at which byte of this file."""
        return BadModelFile(f"{self.name}, byte {offset}: {what}")

    def read_into(self, offset: int, target: memoryview) -> None:
        """Fill `target` with the bytes at `offset`.

        Raises:
            BadModelFile: The file ends before.
            StorageError: The disk refuses.
        """
        done = 0
        while done < len(target):
            try:
                got = os.preadv(self._fd, [target[done:]], offset + done)
            except OSError as error:
                raise StorageError(f"{self.name}, byte {offset + done}: cannot be read: {error.strerror}") from error
            if got == 0:
                raise self.bad(offset + done, f"the file ends here, {len(target) - done} bytes are missing")
            done += got

    def read(self, offset: int, count: int) -> bytearray:
        """Read `count` bytes at `offset`; the caller has checked that they lie in the file."""
        data = bytearray(count)
        self.read_into(offset, memoryview(data))
        return data

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
