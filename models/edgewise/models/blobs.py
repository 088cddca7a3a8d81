"""Content-addressed files: a finished blob is named by its SHA-256, an unfinished one waits beside them and can be resumed."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import Final

from edgewise.core.errors import DigestMismatch
from edgewise.core.files import fsync_dir, own_like_parent
from edgewise.models.disk import CHUNK, is_full, make_dirs, translate
from edgewise.models.manifest import StoredFile
from edgewise.models.progress import Phase, Progress, ProgressSink

IMPORT_PREFIX: Final = "import-"

_MODE: Final = 0o444


class PartialFile:
    """A file on its way into the store, continued where an earlier attempt stopped.

    Use as a context manager: entering hashes what is already there, `write` appends, `finish` checks. What has been written
    stays on disk when an attempt fails, unless the disk is full: then it is removed, so that the disk recovers.

    Attributes:
        offset: Bytes held.
        resumed: Whether they came in more than one piece, so that a wrong digest may be the fault of an earlier one.

    Args:
        path: Where it lies, on the same file system as the blobs.
        file: What it is to become.
        progress: Told while old bytes are being re-read.
    """

    def __init__(self, path: Path, file: StoredFile, progress: ProgressSink) -> None:
        self.path = path
        self.file = file
        self._note = path.with_name(f"{path.name}.origin")
        self._progress = progress
        self._hash = hashlib.sha256()
        self._out: FileIO | None = None
        self.offset = 0
        self.resumed = False

    def __repr__(self) -> str:
        return f"PartialFile({self.file.name!r}, {self.offset}/{self.file.size})"

    def __enter__(self) -> PartialFile:
        try:
            self._out = self.path.open("ab+", buffering=0)  # what was written is in the file, also after kill -9
            own_like_parent(self.path)
            self._forget()
            self._adopt()
        except OSError as error:
            self.close()
            raise translate(error, self.path.parent) from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the file and keeps it."""
        if self._out is not None:
            self._out.close()
            self._out = None

    def write(self, data: bytes) -> None:
        """Appends.

        Raises:
            DigestMismatch: More bytes than the file has; it is emptied.
            StorageError: The disk refuses; if it is full, the file is removed.
        """
        if self.offset + len(data) > self.file.size:
            self.discard()
            raise DigestMismatch(f"{self.file.name} is longer than the {self.file.size} bytes that its entry states.")
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[self._open.write(rest) :]
        except OSError as error:
            raise self._refused(error) from error
        self._hash.update(data)
        self.offset += len(data)

    def reset(self) -> None:
        """Empties the file, to begin again."""
        self._open.truncate(0)
        self._forget()
        self.origin = None

    def discard(self) -> None:
        """Closes and removes the file and its note; it can be entered again."""
        self.close()
        self.path.unlink(missing_ok=True)
        self._note.unlink(missing_ok=True)

    def finish(self) -> None:
        """Checks size and digest and makes the bytes durable.

        Raises:
            DigestMismatch: They are not those of the entry; the file is removed.
            StorageError: The disk refuses.
        """
        found = self._hash.hexdigest()
        if (self.offset, found) != (self.file.size, self.file.sha256):
            self.discard()
            raise DigestMismatch(
                f"{self.file.name} is not the expected file: {self.offset} bytes with SHA-256 {found} arrived, its entry "
                f"states {self.file.size} bytes with {self.file.sha256}. It was thrown away; try again or another source."
            )
        try:
            os.fsync(self._open.fileno())
        except OSError as error:
            raise self._refused(error) from error

    @property
    def origin(self) -> tuple[str, str] | None:
        """(URL, validator) under which the bytes so far arrived, kept beside the file."""
        try:
            url, validator = json.loads(self._note.read_bytes())
        except (OSError, ValueError, TypeError):
            return None  # no note, or one cut by a crash: the digest decides then
        return str(url), str(validator)

    @origin.setter
    def origin(self, value: tuple[str, str] | None) -> None:
        if value is None:
            self._note.unlink(missing_ok=True)
            return
        try:
            self._note.write_bytes(json.dumps(value).encode())
        except OSError as error:
            raise self._refused(error) from error

    @property
    def _open(self) -> FileIO:
        if self._out is None:
            raise RuntimeError(f"{self!r} is not open")
        return self._out

    def _forget(self) -> None:
        self._hash = hashlib.sha256()
        self.offset = 0
        self.resumed = False

    def _adopt(self) -> None:
        size = os.fstat(self._open.fileno()).st_size
        if size > self.file.size:
            self.reset()
            return
        self._open.seek(0)
        while data := self._open.read(CHUNK):
            self._hash.update(data)
            self.offset += len(data)
            self._progress(Progress("resume", self.file.name, self.offset, size))
        self.resumed = self.offset > 0

    def _refused(self, error: OSError) -> Exception:
        missing = self.file.size - self.offset
        if is_full(error):
            self.discard()
        return translate(error, self.path.parent, missing)


class Blobs:
    """The blobs, partial files and quarantine of one store. Changing methods need the store's lock.

    Args:
        root: The store's folder; nothing is made before it is needed.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.finished = root / "blobs" / "sha256"
        self.partial = root / "partial"
        self.quarantine = root / "quarantine"

    def path(self, sha256: str) -> Path:
        """Where the blob lies or would lie."""
        return self.finished / sha256

    def has(self, file: StoredFile) -> bool:
        """Whether the blob is there with the right size (its bytes are checked by `verify` only)."""
        try:
            return self.path(file.sha256).stat().st_size == file.size
        except FileNotFoundError:
            return False

    def prepare(self) -> None:
        """Makes the folders and removes what imports that were killed left."""
        make_dirs(self.finished)
        make_dirs(self.partial)
        _remove(path for path in _children(self.partial) if path.name.startswith(IMPORT_PREFIX))

    def open_partial(self, file: StoredFile, progress: ProgressSink) -> PartialFile:
        """The partial file of a blob, not yet entered."""
        return PartialFile(self.partial / file.sha256, file, progress)

    @contextmanager
    def workshop(self) -> Iterator[Path]:
        """A new folder beside the partial files, removed at the end; one whose process was killed counts as unfinished. Needs no
        lock."""
        make_dirs(self.partial)
        with tempfile.TemporaryDirectory(prefix="making-", dir=self.partial) as folder:
            own_like_parent(Path(folder))
            yield Path(folder)

    def partial_size(self, file: StoredFile) -> int:
        """Bytes of it that an earlier attempt left and that the next one can use."""
        try:
            size = (self.partial / file.sha256).stat().st_size
        except FileNotFoundError:
            return 0
        return size if size <= file.size else 0

    def commit(self, finished: Path, file: StoredFile, *, seal: bool = True) -> None:
        """Moves a checked, synced file to its place; a damaged copy of it in quarantine is no longer needed then.

        Args:
            finished: On the same file system.
            file: What it is.
            seal: Make it read-only; not for a hard link, whose mode is also that of the user's own file.
        """
        if seal:
            finished.chmod(_MODE)
        finished.replace(self.path(file.sha256))
        fsync_dir(self.finished)
        finished.with_name(f"{finished.name}.origin").unlink(missing_ok=True)
        for old in self._quarantined(file.sha256):
            old.unlink()

    def set_aside(self, sha256: str) -> Path:
        """Moves a damaged blob to the quarantine, so that the next pull fetches it anew; returns its new path."""
        make_dirs(self.quarantine)
        target = self.quarantine / f"{sha256}.{len(self._quarantined(sha256))}"
        self.path(sha256).replace(target)
        fsync_dir(self.quarantine)
        fsync_dir(self.finished)
        return target

    def collect(self, keep: Iterable[str]) -> int:
        """Removes every blob whose SHA-256 is not in `keep`; returns the bytes freed."""
        kept = set(keep)
        return _remove(path for path in _children(self.finished) if path.name not in kept)

    def clear_partial(self) -> int:
        """Removes everything unfinished and everything in quarantine; returns the bytes freed."""
        return _remove([*_children(self.partial), *_children(self.quarantine)])

    def sweep(self, folder: Path, keep: frozenset[str]) -> None:
        """Removes everything in `folder`, below the partial files, but what is called as in `keep`."""
        _remove(path for path in _children(folder) if path.name not in keep)

    def leftovers(self) -> int:
        """Bytes that `clear_partial` would free."""
        return sum(_size(path) for path in [*_children(self.partial), *_children(self.quarantine)])

    def _quarantined(self, sha256: str) -> list[Path]:
        return [path for path in _children(self.quarantine) if path.name.startswith(f"{sha256}.")]


def hash_file(
    path: Path, phase: Phase, item: str, progress: ProgressSink, *, copy: Callable[[bytes], object] | None = None
) -> str:
    """SHA-256 of a file, 64 hex digits.

    Args:
        path: The file.
        phase: Reported with the progress.
        item: Likewise.
        progress: Told after every megabyte.
        copy: Also given every piece that was hashed, in order.
    """
    digest = hashlib.sha256()
    done = 0
    with path.open("rb") as file:
        total = os.fstat(file.fileno()).st_size
        while data := file.read(CHUNK):
            digest.update(data)
            if copy is not None:
                copy(data)
            done += len(data)
            progress(Progress(phase, item, done, total))
    return digest.hexdigest()


def _children(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []


def _size(path: Path) -> int:
    if path.is_dir() and not path.is_symlink():
        return sum(_size(child) for child in path.iterdir())
    return path.lstat().st_size


def _remove(paths: Iterable[Path]) -> int:
    freed = 0
    for path in paths:
        freed += _size(path)
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    return freed
