"""Databases of both kinds, and the services over them without a broker."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from edgewise.cloud.fleet.db.database import FleetDatabase, sqlite_url
from edgewise.cloud.fleet.db.migrate import migrate
from tests.cloud.fleet.bench import Bench, empty
from tests.e2e.postgres import PostgresServer, postgres_server


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    with postgres_server() as server:
        yield server


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Of an empty database; tests that use it run on both kinds."""
    if request.param == "sqlite":
        return sqlite_url(tmp_path / "fleet.db")
    server: PostgresServer = request.getfixturevalue("postgres")
    return server.url(server.create())


@pytest.fixture(scope="session")
def migrated_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An SQLite database with the schema of this software, to be copied: cheaper than migrations for each test."""
    path = tmp_path_factory.mktemp("fleet") / "fleet.db"
    _migrate(sqlite_url(path))
    return path


@pytest.fixture(scope="session")
def migrated_url(postgres: PostgresServer) -> str:
    """One in PostgreSQL, which is emptied for each test."""
    url = postgres.url(postgres.create())
    _migrate(url)
    return url


@pytest.fixture(params=["sqlite", "postgresql"])
def db(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[FleetDatabase]:
    """With the schema of this software; tests that use it run on both kinds."""
    if request.param == "sqlite":
        shutil.copyfile(request.getfixturevalue("migrated_file"), tmp_path / "fleet.db")
        database = FleetDatabase(sqlite_url(tmp_path / "fleet.db"))
    else:
        database = FleetDatabase(request.getfixturevalue("migrated_url"))
        empty(database)
    yield database
    database.close()


def _migrate(url: str) -> None:
    database = FleetDatabase(url)
    asyncio.run(migrate(database))
    database.close()


@pytest.fixture
async def bench(db: FleetDatabase) -> AsyncIterator[Bench]:
    """The services over a database of either kind; nothing runs by itself but the ingest."""
    made = Bench(db)
    made.ingest.start()
    yield made
    await made.ingest.stop()
    await made.commands.stop()
