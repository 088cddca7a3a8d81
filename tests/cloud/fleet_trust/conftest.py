"""People of two tenants; the database is of either kind, as in tests/cloud/fleet."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from argon2.profiles import CHEAPEST

from edgewise.cloud.fleet.actor import Actor
from edgewise.cloud.fleet.changes import Changes
from edgewise.cloud.fleet.db.database import FleetDatabase, sqlite_url
from edgewise.cloud.fleet.db.tables import FIRST_TENANT
from edgewise.cloud.fleet.people.service import PeopleService, ensure_tenant
from edgewise.core.clock import FakeClock
from edgewise.core.settings_fleet import FleetSettings
from tests.cloud.fleet.conftest import db, migrated_file, migrated_url, postgres

__all__ = ["db", "migrated_file", "migrated_url", "postgres"]


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def admin(db: FleetDatabase) -> Actor:
    tenant = await db.write(lambda session: ensure_tenant(session, FIRST_TENANT, now=0.0))
    return Actor(tenant=tenant, name="ada", role="admin")


@pytest.fixture
async def stranger(db: FleetDatabase) -> Actor:
    """An admin of another tenant."""
    tenant = await db.write(lambda session: ensure_tenant(session, "other", now=0.0))
    return Actor(tenant=tenant, name="otto", role="admin")


@pytest.fixture
def people(db: FleetDatabase, clock: FakeClock) -> Iterator[PeopleService]:
    service = PeopleService(db, Changes(), FleetSettings(login_tries=3, session_s=100.0), clock=clock, hashing=CHEAPEST)
    yield service
    service.close()


@pytest.fixture
def sqlite_db(tmp_path: Path, migrated_file: Path) -> Iterator[FleetDatabase]:
    """For tests to which the kind of database makes no difference."""
    shutil.copyfile(migrated_file, tmp_path / "fleet.db")
    database = FleetDatabase(sqlite_url(tmp_path / "fleet.db"))
    yield database
    database.close()
