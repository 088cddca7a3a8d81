"""One SQLite database: one thread, one connection, durable commits, a schema with a version.

WAL with full synchronisation: what a caller was told is stored survives a power cut (sqlite.org, "Write-Ahead Logging", "PRAGMA
synchronous"). All work is done on one thread, so that the event loop never waits for a disk and no two writers meet.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from edgewise.core.errors import StorageError
from edgewise.core.files import make_folder, own_like_parent, translate_os_errors

Result = TypeVar("Result")
_BUSY_TIMEOUT_S = 10.0


class Database:
    """Opened at the first use; a failed opening is tried again by the next use.

    Args:
        path: The file; made with its folder, readable by its owner only. None keeps everything in memory.
        migrations: SQL scripts; number i brings a database of version i to version i + 1. Never change one that was released.
    """

    def __init__(self, path: Path | None, migrations: Sequence[str]) -> None:
        self._path = path
        self._migrations = tuple(migrations)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="sqlite")
        self._connection: sqlite3.Connection | None = None

    def __repr__(self) -> str:
        return f"Database({str(self._path or ':memory:')!r}, open={self._connection is not None})"

    async def run(self, work: Callable[[sqlite3.Connection], Result]) -> Result:
        """Do `work` inside one transaction on the database's thread; its effects are on disk when this returns.

        A caller that is cancelled meanwhile does not know whether the work was done.

        Raises:
            StorageError: The disk or the database refuses; nothing of the transaction remains, and later work may succeed.
        """
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._transact, work)

    async def check(self) -> str:
        """SQLite's own verdict on the file: "ok", or the first damage found."""
        return await self.run(lambda connection: str(connection.execute("PRAGMA integrity_check(1)").fetchone()[0]))

    async def checkpoint(self) -> bool:
        """Bring the write-ahead log into the file and empty it, so that it holds no earlier versions of rows; False while another
        process reads."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._checkpoint)

    def close(self) -> None:
        """Wait for work that was begun, then close. A closed database refuses all work (RuntimeError)."""
        self._thread.submit(self._close)
        self._thread.shutdown(wait=True)

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _checkpoint(self) -> bool:
        if self._connection is None:
            return True
        try:
            self._connection.execute("PRAGMA busy_timeout = 100")  # a reader that stands still holds nobody up
            try:
                return not self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
            finally:
                self._connection.execute(f"PRAGMA busy_timeout = {int(_BUSY_TIMEOUT_S * 1000)}")
        except sqlite3.Error as error:
            raise StorageError(_explain(error, self._path)) from error

    def _transact(self, work: Callable[[sqlite3.Connection], Result]) -> Result:
        try:
            if self._connection is None:
                self._connection = self._open()
            with _transaction(self._connection):
                return work(self._connection)
        except sqlite3.Error as error:
            raise StorageError(_explain(error, self._path)) from error

    def _open(self) -> sqlite3.Connection:
        if self._path is not None:
            make_folder(self._path.parent, mode=0o750)
            _make_file(self._path)
        connection = sqlite3.connect(
            self._path or ":memory:", timeout=_BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
        )
        try:
            connection.row_factory = sqlite3.Row
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("PRAGMA foreign_keys = ON")
            self._migrate(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _migrate(self, connection: sqlite3.Connection) -> None:
        """Every step in a transaction of its own: a crash leaves the version before it or after it."""
        version = int(connection.execute("PRAGMA user_version").fetchone()[0])
        if version > len(self._migrations):
            raise StorageError(
                f"{self._path} has schema version {version}, but this release knows {len(self._migrations)}: "
                "install the newer release again, or restore the file from a backup"
            )
        for number in range(version, len(self._migrations)):
            connection.executescript(
                f"BEGIN IMMEDIATE; {self._migrations[number]}; PRAGMA user_version = {number + 1}; COMMIT;"
            )


@contextlib.contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:  # a full disk may have rolled back by itself
            connection.execute("ROLLBACK")
        raise


def _make_file(path: Path) -> None:
    with translate_os_errors("create", path):
        if not path.exists():
            os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
            own_like_parent(path)


def _explain(error: sqlite3.Error, path: Path | None) -> str:
    text = str(error)
    if "full" in text:
        return f"cannot write {path}: the disk is full; free space, nothing that was acknowledged is lost"
    if "readonly" in text or "unable to open" in text:
        return f"cannot open or write {path}: {text}; run as the user that owns it and check that the disk is writable"
    if "malformed" in text or "not a database" in text:
        return f"{path} is damaged ({text}); restore it from a backup, or move it away to begin with an empty one"
    return f"{path}: {text}"
