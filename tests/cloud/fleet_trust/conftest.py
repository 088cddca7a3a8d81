"""A fleet database on disk, and people of two tenants."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from argon2.profiles import CHEAPEST

from edgewise.cloud.fleet.actor import Actor
from edgewise.cloud.fleet.changes import Changes
from edgewise.cloud.fleet.db.database import FleetDatabase, sqlite_url
from edgewise.cloud.fleet.db.tables import Base
from edgewise.cloud.fleet.people.service import PeopleService, ensure_tenant
from edgewise.core.clock import FakeClock
from edgewise.core.settings_fleet import FleetSettings


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def db(tmp_path: Path) -> Iterator[FleetDatabase]:
    database = FleetDatabase(sqlite_url(tmp_path / "fleet.db"))
    Base.metadata.create_all(database.engine)
    yield database
    database.close()


@pytest.fixture
async def admin(db: FleetDatabase) -> Actor:
    tenant = await db.write(lambda session: ensure_tenant(session, now=0.0))
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
