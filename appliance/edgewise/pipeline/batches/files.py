"""Files of callers: what they are in SQLite, their bytes in one folder, each named by its id.

A file is written under a temporary name, synced, renamed, and only then entered, so that an entry always has its bytes. What a
crash leaves without an entry is removed at the next start.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from edgewise.core.clock import Clock, SystemClock
from edgewise.core.errors import NotFound, StorageError
from edgewise.core.files import fsync_dir, make_folder, translate_os_errors
from edgewise.core.sqlite import Database


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFile:
    """Times in seconds since the epoch; `expires_at` None keeps it until it is deleted."""

    id: str
    owner: str
    purpose: str
    filename: str
    bytes: int
    created_at: float
    expires_at: float | None


class Files:
    """Args:
    folder: Where bytes are kept; None: no file can be.
    total_bytes: All files together; one that does not fit is refused.
    """

    def __init__(
        self, database: Database, folder: Path | None, *, total_bytes: int = 2**30, clock: Clock | None = None
    ) -> None:
        self._database = database
        self._folder = folder
        self._total_bytes = total_bytes
        self._clock = clock or SystemClock()
        self._adding: set[str] = set()

    def __repr__(self) -> str:
        return f"Files({str(self._folder)!r}, total_bytes={self._total_bytes})"

    async def add(
        self,
        owner: str,
        *,
        purpose: str,
        filename: str,
        write: Callable[[BinaryIO], None],
        expires_s: float | None,
    ) -> StoredFile:
        """Keep what `write` writes (on a thread); on disk when this returns.

        Raises:
            StorageError: The disk is full, or the files are more than `total_bytes`.
        """
        id = f"file-{uuid.uuid4().hex}"
        self._adding.add(id)
        try:
            return await self._add(id, owner, purpose, filename, write, expires_s)
        finally:
            self._adding.discard(id)

    async def _add(
        self,
        id: str,
        owner: str,
        purpose: str,
        filename: str,
        write: Callable[[BinaryIO], None],
        expires_s: float | None,
    ) -> StoredFile:
        path = await asyncio.to_thread(self._write, id, write)
        now = self._clock.time()
        file = StoredFile(
            id=id,
            owner=owner,
            purpose=purpose,
            filename=filename,
            bytes=path.stat().st_size,
            created_at=now,
            expires_at=None if expires_s is None else now + expires_s,
        )
        try:
            await self._database.run(lambda connection: self._enter(connection, file))
        except StorageError:
            await asyncio.to_thread(path.unlink)
            raise
        return file

    def path(self, id: str) -> Path:
        """Where the bytes of an entered file are."""
        return self._where() / id

    async def get(self, owner: str, id: str, *, param: str = "file_id") -> StoredFile:
        """Raises `NotFound`: there is none, it is another owner's, or it has expired."""
        row = await self._database.run(
            lambda connection: connection.execute(
                "SELECT * FROM files WHERE id = ? AND owner = ? AND (expires_at IS NULL OR expires_at > ?)",
                (id, owner, self._clock.time()),
            ).fetchone()
        )
        if row is None:
            raise NotFound(f"There is no file '{id[:80]}': it was deleted, has expired, or never was.", param=param)
        return _file(row)

    async def of_owner(self, owner: str, purpose: str | None = None) -> list[StoredFile]:
        """Oldest first."""
        query = (
            "SELECT * FROM files WHERE owner = ? AND (expires_at IS NULL OR expires_at > ?) ORDER BY created_at, rowid"
        )
        rows = await self._database.run(
            lambda connection: connection.execute(query, (owner, self._clock.time())).fetchall()
        )
        return [_file(row) for row in rows if purpose is None or row["purpose"] == purpose]

    async def delete(self, owner: str, id: str) -> None:
        """Raises `NotFound`."""
        await self.get(owner, id)
        await self._database.run(
            lambda connection: connection.execute("DELETE FROM files WHERE id = ?", (id,)).rowcount
        )
        await asyncio.to_thread(self.path(id).unlink, missing_ok=True)

    async def sweep(self) -> int:
        """Remove expired files, and bytes without an entry that a crash left; returns how many went."""
        folder = self._folder
        if folder is None or not folder.is_dir():
            return 0
        now = self._clock.time()
        there = await asyncio.to_thread(lambda: [path for path in folder.iterdir() if path.name.startswith("file-")])

        def work(connection: sqlite3.Connection) -> set[str]:
            connection.execute("DELETE FROM files WHERE expires_at <= ?", (now,))
            return {row["id"] for row in connection.execute("SELECT id FROM files")}

        known = (
            await self._database.run(work) | self._adding
        )  # what was there and is not entered now is still being added
        strangers = [path for path in there if path.name.removesuffix(".part") not in known]
        await asyncio.to_thread(_remove, strangers)
        return len(strangers)

    def _where(self) -> Path:
        if self._folder is None:
            raise StorageError("Files cannot be kept: the service was started without a folder for them.")
        return self._folder

    def _write(self, id: str, write: Callable[[BinaryIO], None]) -> Path:
        folder = self._where()
        make_folder(folder, mode=0o750)
        temporary, final = folder / f"{id}.part", folder / id
        with translate_os_errors("write", final):
            try:
                with temporary.open("xb") as file:
                    write(file)
                    file.flush()
                    os.fsync(file.fileno())
                temporary.rename(final)
                fsync_dir(folder)
            except BaseException:
                temporary.unlink(missing_ok=True)
                raise
        return final

    def _enter(self, connection: sqlite3.Connection, file: StoredFile) -> None:
        used = int(connection.execute("SELECT coalesce(sum(bytes), 0) FROM files").fetchone()[0])
        if used + file.bytes > self._total_bytes:
            raise StorageError(
                f"The file has {file.bytes} bytes, but only {max(0, self._total_bytes - used)} of files.total_bytes "
                f"({self._total_bytes}) are left: delete files, or raise the setting."
            )
        insert_file(connection, file)


def insert_file(connection: sqlite3.Connection, file: StoredFile) -> None:
    values = (file.id, file.owner, file.purpose, file.filename, file.bytes, file.created_at, file.expires_at)
    connection.execute("INSERT INTO files VALUES (?, ?, ?, ?, ?, ?, ?)", values)


def copy_from(source: BinaryIO) -> Callable[[BinaryIO], None]:
    """A writer that copies an open file."""

    def write(target: BinaryIO) -> None:
        source.seek(0)
        shutil.copyfileobj(source, target, 2**20)

    return write


def _remove(paths: Iterable[Path]) -> None:
    for path in paths:
        path.unlink(missing_ok=True)


def _file(row: Any) -> StoredFile:
    return StoredFile(**{name: row[name] for name in StoredFile.__dataclass_fields__})
