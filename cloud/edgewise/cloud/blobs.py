"""Bytes beside the messages: pictures, latents, long texts. Each tenant has its own, named by their SHA-256.

An upload grows as a `.part` file and may be resumed where it broke; a blob is entered in the table only after its hash was
found right and its bytes are on disk. It is kept as long as a job uses it, and a while before the first one does.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import BinaryIO

from edgewise.core.clock import Clock, SystemClock
from edgewise.core.errors import DigestMismatch, NotFound, PayloadTooLarge, QueueFull, RangeNotThere
from edgewise.core.files import fsync_dir, make_folder, translate_os_errors
from edgewise.core.sqlite import Database
from edgewise.wire.messages import Blob

UNUSED_S = 3600.0
"""A blob that no job names, and an upload that nobody goes on with, is dropped after so long."""


_PIECE = 2**20


class BlobStore:
    """Args:
    database: The job table's; see `jobs.schema`.
    max_bytes: Largest blob.
    tenant_bytes: All blobs of one tenant.
    """

    def __init__(
        self,
        database: Database,
        folder: Path,
        *,
        max_bytes: int = 64 * 1024**2,
        tenant_bytes: int = 2 * 1024**3,
        clock: Clock | None = None,
    ) -> None:
        self._database = database
        self._folder = folder
        self.max_bytes = max_bytes
        self._tenant_bytes = tenant_bytes
        self._clock = clock or SystemClock()
        self._locks: dict[Path, tuple[asyncio.Lock, list[None]]] = {}

    def __repr__(self) -> str:
        return f"BlobStore({str(self._folder)!r})"

    async def find(self, tenant: str, sha256: str) -> Blob:
        """Raises `NotFound`, also for a blob of another tenant."""

        def work(db: sqlite3.Connection) -> sqlite3.Row | None:
            query = "SELECT * FROM blobs WHERE tenant = ? AND sha256 = ?"
            row: sqlite3.Row | None = db.execute(query, (tenant, sha256)).fetchone()
            return row

        row = await self._database.run(work)
        if row is None:
            raise NotFound(f"There is no blob '{sha256[:64]}' here.", param="sha256")
        return Blob(sha256=row["sha256"], bytes=row["bytes"], media=row["media"])

    def path(self, tenant: str, sha256: str) -> Path:
        """Where the bytes of an entered blob are."""
        return self._folder / hashlib.sha256(tenant.encode()).hexdigest()[:32] / sha256

    def received(self, tenant: str, sha256: str) -> int:
        """Bytes of an unfinished upload that are here."""
        try:
            return _part(self.path(tenant, sha256)).stat().st_size
        except FileNotFoundError:
            return 0

    async def read(self, tenant: str, sha256: str) -> bytes:
        """All its bytes. Raises `NotFound`."""
        await self.find(tenant, sha256)
        return await asyncio.to_thread(self.path(tenant, sha256).read_bytes)

    async def put(self, tenant: str, content: bytes, media: str) -> Blob:
        """Keep bytes of our own: results and previews."""
        sha256 = hashlib.sha256(content).hexdigest()

        async def whole() -> AsyncIterator[bytes]:
            yield content

        blob = await self.write(tenant, sha256, whole(), start=0, total=len(content), media=media)
        assert blob is not None  # it was whole
        return blob

    async def write(
        self, tenant: str, sha256: str, content: AsyncIterator[bytes], *, start: int, total: int | None, media: str
    ) -> Blob | None:
        """Take bytes from `start` on; the blob once it is whole, None while bytes are missing.

        Args:
            total: Size of the whole blob; None: it ends with these bytes.

        Raises:
            RangeNotThere: The upload so far ends elsewhere than at `start`.
            PayloadTooLarge: More than `max_bytes`, or than `total`.
            QueueFull: The tenant's blobs are too many.
            DigestMismatch: It is not what its name says; what was here of it is deleted.
            StorageError: The disk refuses.
        """
        path = self.path(tenant, sha256)
        async with self._alone(path):
            with contextlib.suppress(NotFound):
                return await self.find(tenant, sha256)
            await self._check_room(tenant, path, start if total is None else total)
            size = await self._take(path, content, start, total)
            if total is not None and size < total:
                return None
            await asyncio.to_thread(_enter, path, sha256)
            blob = Blob(sha256=sha256, bytes=size, media=media)
            expires_at = self._clock.time() + UNUSED_S
            values = (tenant, sha256, size, media, expires_at)
            await self._database.run(lambda db: db.execute("INSERT INTO blobs VALUES (?, ?, ?, ?, ?)", values).rowcount)
            return blob

    async def sweep(self) -> int:
        """Delete blobs that are due; returns how many."""
        now = self._clock.time()
        rows = await self._database.run(
            lambda db: db.execute("SELECT tenant, sha256 FROM blobs WHERE expires_at <= ?", (now,)).fetchall()
        )
        for row in rows:
            await self._drop(row["tenant"], row["sha256"], now)
        return len(rows)

    async def tidy(self) -> int:
        """Delete files that belong to no blob: uploads that nobody goes on with, and what a crash left."""
        known = await self._database.run(lambda db: db.execute("SELECT tenant, sha256 FROM blobs").fetchall())
        paths = {self.path(row["tenant"], row["sha256"]) for row in known}
        return await asyncio.to_thread(_tidy, self._folder, paths, self._clock.time() - UNUSED_S)

    async def _drop(self, tenant: str, sha256: str, now: float) -> None:
        path = self.path(tenant, sha256)
        async with self._alone(path):
            query = "DELETE FROM blobs WHERE tenant = ? AND sha256 = ? AND expires_at <= ?"
            gone = await self._database.run(lambda db: db.execute(query, (tenant, sha256, now)).rowcount)
            if gone:
                await asyncio.to_thread(path.unlink, missing_ok=True)

    @contextlib.asynccontextmanager
    async def _alone(self, path: Path) -> AsyncIterator[None]:
        """Nobody else writes or deletes this blob meanwhile. The lock is kept as long as somebody has or wants it."""
        lock, users = self._locks.setdefault(path, (asyncio.Lock(), []))
        users.append(None)
        try:
            async with lock:
                yield
        finally:
            users.pop()
            if not users:
                del self._locks[path]

    async def _check_room(self, tenant: str, path: Path, size: int) -> None:
        if size > self.max_bytes:
            raise self._too_large()
        query = "SELECT coalesce(sum(bytes), 0) FROM blobs WHERE tenant = ?"
        used = await self._database.run(lambda db: int(db.execute(query, (tenant,)).fetchone()[0]))
        used += await asyncio.to_thread(_unfinished, path)
        if used + size > self._tenant_bytes:
            raise QueueFull(
                f"The blobs of '{tenant}' have {used} of {self._tenant_bytes} bytes: acknowledge results first.",
                retry_after_s=60.0,
                param="bytes",
            )

    async def _take(self, path: Path, content: AsyncIterator[bytes], start: int, total: int | None) -> int:
        """Write to the `.part` file; its size afterwards."""
        part = _part(path)
        with translate_os_errors("write", part):
            make_folder(part.parent, mode=0o750)
            with part.open("r+b" if part.exists() else "w+b") as file:
                have = file.seek(0, os.SEEK_END)
                if start > have:
                    raise RangeNotThere(f"The upload so far has {have} bytes: go on there.", param="content-range")
                file.truncate(start)
                size = file.seek(start)
                async for piece in content:
                    size += len(piece)
                    if size > self.max_bytes or (total is not None and size > total):
                        raise self._too_large()
                    await asyncio.to_thread(file.write, piece)
                await asyncio.to_thread(_sync, file)
        return size

    def _too_large(self) -> PayloadTooLarge:
        return PayloadTooLarge(f"A blob has at most {self.max_bytes} bytes, and no more than it announces.")


def _part(path: Path) -> Path:
    return path.with_name(f"{path.name}.part")


def _sync(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _enter(path: Path, sha256: str) -> None:
    """Check the finished upload and give it its name."""
    part = _part(path)
    hashed = hashlib.sha256()
    with part.open("rb") as file:
        while piece := file.read(_PIECE):
            hashed.update(piece)
    found = hashed.hexdigest()
    if found != sha256:
        part.unlink()
        raise DigestMismatch(f"The blob has the SHA-256 {found}, not {sha256}: it was deleted.", param="sha256")
    part.rename(path)
    fsync_dir(path.parent)


def _unfinished(path: Path) -> int:
    """Bytes of the other uploads of the same tenant that are not finished."""
    parts = path.parent.glob("*.part")
    return sum(part.stat().st_size for part in parts if part != _part(path))


def _tidy(folder: Path, known: set[Path], before: float) -> int:
    strangers = [path for path in folder.glob("*/*") if path not in known and path.stat().st_mtime < before]
    for path in strangers:
        path.unlink(missing_ok=True)
    return len(strangers)
