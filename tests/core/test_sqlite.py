"""The service's database: whole transactions, durable ones, a schema that grows, and a disk that is full."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from edgewise.core.errors import StorageError
from edgewise.core.sqlite import Database
from tests.security.test_full_disk import fill

ONE = "CREATE TABLE notes (id INTEGER PRIMARY KEY, text TEXT NOT NULL) STRICT"
TWO = "ALTER TABLE notes ADD COLUMN kind TEXT NOT NULL DEFAULT 'plain'"
KILLS = 8


@contextmanager
def opened(path: Path | None, *migrations: str) -> Iterator[Database]:
    database = Database(path, migrations or (ONE,))
    try:
        yield database
    finally:
        database.close()


def write(connection: sqlite3.Connection, text: str) -> int:
    return int(connection.execute("INSERT INTO notes (text) VALUES (?)", (text,)).lastrowid or 0)


def count(connection: sqlite3.Connection) -> int:
    return int(connection.execute("SELECT count(*) FROM notes").fetchone()[0])


async def test_work_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def broken(connection: sqlite3.Connection) -> None:
        write(connection, "half")
        raise LookupError

    with opened(tmp_path / "a" / "state.db") as database:
        await database.run(lambda one: write(one, "whole"))
        with pytest.raises(LookupError):
            await database.run(broken)
        assert await database.run(count) == 1
        assert (tmp_path / "a" / "state.db").stat().st_mode & 0o777 == 0o600


async def test_an_older_database_is_brought_up_to_date_and_keeps_what_it_has(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    with opened(path, ONE) as database:
        await database.run(lambda one: write(one, "old"))
    with opened(path, ONE, TWO) as database:
        rows = await database.run(lambda one: [tuple(row) for row in one.execute("SELECT text, kind FROM notes")])
        assert rows == [("old", "plain")]
        assert await database.run(lambda one: one.execute("PRAGMA user_version").fetchone()[0]) == 2


async def test_a_newer_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    with opened(path, ONE, TWO) as database:
        await database.run(lambda one: write(one, "new"))
    told = "schema version 2, but this release knows 1"
    with opened(path, ONE) as database, pytest.raises(StorageError, match=told):
        await database.run(count)


async def test_a_migration_that_fails_leaves_the_old_version(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    with opened(path, ONE) as database:
        await database.run(lambda one: write(one, "old"))
    broken = "CREATE TABLE more (id INTEGER); CREATE TABLE notes (id INTEGER)"
    with opened(path, ONE, broken) as database, pytest.raises(StorageError):
        await database.run(count)
    with opened(path, ONE) as database:
        assert await database.run(count) == 1


async def test_damage_is_said_in_words(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    path.write_bytes(b"this is no database, but long enough to be looked at by sqlite" * 100)
    with opened(path) as database, pytest.raises(StorageError, match="damaged"):
        await database.run(count)


async def test_a_full_disk_refuses_and_heals(small_disk: Path) -> None:
    with opened(small_disk / "state.db") as database:
        await database.run(lambda one: write(one, "before"))
        ballast = fill(small_disk)

        def much(connection: sqlite3.Connection) -> None:
            for _ in range(100):
                write(connection, "x" * 4096)

        with pytest.raises(StorageError):
            await database.run(much)
        assert await database.run(count) == 1
        ballast.unlink()
        await database.run(lambda one: write(one, "after"))
        assert await database.run(count) == 2
        assert await database.check() == "ok"


WRITER = """
import asyncio, sys
from pathlib import Path
from edgewise.core.sqlite import Database
async def main():
    database = Database(Path(sys.argv[1]), ["CREATE TABLE notes (id INTEGER PRIMARY KEY, text TEXT NOT NULL) STRICT"])
    while True:
        number = await database.run(lambda one: one.execute("INSERT INTO notes (text) VALUES ('x')").lastrowid)
        print(number, flush=True)
asyncio.run(main())
"""


def test_nothing_that_was_acknowledged_is_lost_by_kills(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    for kill in range(KILLS):
        writer = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True)
        assert writer.stdout is not None
        told = [int(writer.stdout.readline()) for _ in range(3 + kill)]
        writer.kill()
        told += [int(line) for line in writer.stdout.read().splitlines(keepends=True) if line.endswith("\n")]
        writer.stdout.close()
        writer.wait()
        with opened(path) as database:
            assert asyncio.run(database.run(count)) >= told[-1]
            assert asyncio.run(database.check()) == "ok"
