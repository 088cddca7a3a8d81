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
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgewise.core.clock import Clock, SystemClock
from edgewise.core.errors import (
    Cancelled,
    DigestMismatch,
    NotFound,
    PayloadTooLarge,
    QueueFull,
    RangeNotThere,
    StorageError,
)
from edgewise.core.files import fsync_dir, make_folder, translate_os_errors
from edgewise.core.patience import within
from edgewise.core.sqlite import Database
from edgewise.wire.messages import Blob

UNUSED_S = 3600.0
"""A blob that no job names, and an upload that nobody goes on with, is dropped after so long."""


SILENT_S = 5.0
"""An upload that has brought nothing for so long gives way to another one of the same blob: its link may be gone unnoticed."""

_LOOK_S = 0.5
_PIECE = 2**20


@dataclass(slots=True)
class _Upload:
    """Attributes:
    size: Bytes that it is counted with; those that it announced, or that are here.
    silent_since: Moment on the monotonic clock since which it waits for bytes; None while it does not.
    task: Who waits.
    """

    tenant: str
    size: int
    silent_since: float | None = None
    task: asyncio.Task[Any] | None = None
    gave_way: bool = False


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
        self._uploads: dict[Path, _Upload] = {}

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
        return _size(_part(self.path(tenant, sha256)))

    async def read(self, tenant: str, sha256: str) -> bytes:
        """All its bytes. Raises `NotFound`."""
        await self.find(tenant, sha256)
        try:
            return await asyncio.to_thread(self.path(tenant, sha256).read_bytes)
        except FileNotFoundError:
            raise NotFound(f"The bytes of blob {sha256} are gone: PUT them again.", param="sha256") from None

    async def put(self, tenant: str, content: bytes, media: str) -> Blob:
        """Keep bytes of our own: results and previews."""
        sha256 = await asyncio.to_thread(_digest, content)

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
                known = await self.find(tenant, sha256)
                if await asyncio.to_thread(path.is_file):  # not so where the table was restored without its folder
                    return known
            upload = self._uploads[path] = _Upload(tenant, start if total is None else total)
            try:
                room = await self._room(upload)
                size = await self._take(path, content, start, total, upload, room)
            finally:
                del self._uploads[path]
            if total is not None and size < total:
                return None
            with translate_os_errors("enter", path):
                await asyncio.to_thread(_enter, path, sha256)
            blob = Blob(sha256=sha256, bytes=size, media=media)
            expires_at = self._clock.time() + UNUSED_S
            values = (tenant, sha256, size, media, expires_at)
            await self._database.run(
                lambda db: db.execute("INSERT OR IGNORE INTO blobs VALUES (?, ?, ?, ?, ?)", values).rowcount
            )
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
        paths = {self.path(row["tenant"], row["sha256"]) for row in known} | {*self._locks}
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
            await self._turn(path, lock)
            try:
                yield
            finally:
                lock.release()
        finally:
            users.pop()
            if not users:
                del self._locks[path]

    async def _turn(self, path: Path, lock: asyncio.Lock) -> None:
        """Wait for the lock, but not for an upload whose link has gone silent."""
        while True:
            try:
                await within(lock.acquire(), _LOOK_S, asyncio.TimeoutError)
            except asyncio.TimeoutError:
                upload = self._uploads.get(path)
                since = None if upload is None else upload.silent_since
                if since is not None and self._clock.monotonic() - since >= SILENT_S:
                    assert upload is not None
                    assert upload.task is not None
                    upload.gave_way = True
                    upload.task.cancel()
            else:
                return

    async def _room(self, upload: _Upload) -> int:
        """Bytes that this upload may have. Uploads under way count with what they announced."""
        if upload.size > self.max_bytes:
            raise self._too_large()
        query = "SELECT coalesce(sum(bytes), 0) FROM blobs WHERE tenant = ?"
        used = await self._database.run(lambda db: int(db.execute(query, (upload.tenant,)).fetchone()[0]))
        others = {path: one for path, one in self._uploads.items() if one.tenant == upload.tenant}
        used += sum(one.size for one in others.values() if one is not upload)
        used += await asyncio.to_thread(_unfinished, self.path(upload.tenant, "-").parent, {*map(_part, others)})
        if used + upload.size > self._tenant_bytes:
            raise self._full(upload.tenant, used)
        return self._tenant_bytes - used

    async def _take(
        self, path: Path, content: AsyncIterator[bytes], start: int, total: int | None, upload: _Upload, room: int
    ) -> int:
        """Write to the `.part` file; its size afterwards."""
        part, size = _part(path), start
        try:
            with translate_os_errors("write", part):
                await _in_thread(_begin, part, start)
                async with contextlib.aclosing(self._heard(content, upload)) as heard:
                    async for piece in heard:
                        began, size = size, size + len(piece)
                        if size > self.max_bytes or (total is not None and size > total):
                            raise self._too_large()
                        if size > room:
                            raise self._full(upload.tenant, self._tenant_bytes - room)
                        upload.size = max(upload.size, size)
                        await _in_thread(_write, part, began, piece)
                await _in_thread(_sync, part)
        except StorageError:  # what is here of it is in the way of everybody else
            with contextlib.suppress(OSError):
                await _in_thread(part.unlink)
            raise
        return size

    async def _heard(self, content: AsyncIterator[bytes], upload: _Upload) -> AsyncGenerator[bytes, None]:
        """The bytes as they come. Raises `Cancelled` once the upload has given way to another one."""
        upload.task = asyncio.current_task()
        pieces = content.__aiter__()
        try:
            while True:
                upload.silent_since = self._clock.monotonic()
                try:
                    piece = await anext(pieces)
                except StopAsyncIteration:
                    return
                finally:
                    upload.silent_since = None
                yield piece
        except asyncio.CancelledError:
            if upload.gave_way:
                raise Cancelled("Another upload of this blob goes on where this one fell silent.") from None
            raise

    def _full(self, tenant: str, used: int) -> QueueFull:
        return QueueFull(
            f"The blobs of '{tenant}' have {used} of {self._tenant_bytes} bytes: acknowledge results first.",
            retry_after_s=60.0,
            param="bytes",
        )

    def _too_large(self) -> PayloadTooLarge:
        return PayloadTooLarge(
            f"A blob has at most {self.max_bytes} bytes here (intake.max_blob_bytes), and no more than it announces: send a "
            "smaller one, or raise the setting."
        )


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _part(path: Path) -> Path:
    return path.with_name(f"{path.name}.part")


async def _in_thread(work: Callable[..., None], *arguments: Any) -> None:
    """A caller that is cancelled meanwhile leaves when the thread is done: the file is another upload's then."""
    task = asyncio.ensure_future(asyncio.to_thread(work, *arguments))
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.gather(task, return_exceptions=True)
        raise


def _begin(part: Path, start: int) -> None:
    """Leave `start` bytes. Raises `RangeNotThere` where there are fewer."""
    make_folder(part.parent, mode=0o750)
    with part.open("ab", buffering=0) as file:
        have = file.tell()
        if start > have:
            raise RangeNotThere(f"The upload so far has {have} bytes: go on there.", param="content-range")
        file.truncate(start)


def _write(part: Path, start: int, piece: bytes) -> None:
    with part.open("r+b", buffering=0) as file:
        file.seek(start)
        rest = memoryview(piece)
        while rest:
            rest = rest[file.write(rest) :]


def _sync(part: Path) -> None:
    with part.open("rb") as file:
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


def _unfinished(folder: Path, counted: set[Path]) -> int:
    """Bytes of a tenant's broken uploads, which may be resumed; those that are counted otherwise left out."""
    return sum(size for part in folder.glob("*.part") if part not in counted and (size := _size(part)))


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _tidy(folder: Path, known: set[Path], before: float) -> int:
    kept = known | {_part(path) for path in known}
    strangers = [path for path in folder.glob("*/*") if path not in kept and path.stat().st_mtime < before]
    for path in strangers:
        path.unlink(missing_ok=True)
    return len(strangers)
