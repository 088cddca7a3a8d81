"""A real fleet service's enrolment behind TLS, with a certificate of its own authority, on a clock that tests move."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI

from edgewise.cloud.fleet.actor import Actor
from edgewise.cloud.fleet.api.app import add_api
from edgewise.cloud.fleet.changes import Changes
from edgewise.cloud.fleet.db.database import FleetDatabase, sqlite_url
from edgewise.cloud.fleet.db.tables import FIRST_TENANT, Base
from edgewise.cloud.fleet.enrolment.service import EnrolmentService
from edgewise.cloud.fleet.people.service import ensure_tenant
from edgewise.core.clock import FakeClock
from edgewise.core.settings import Settings
from edgewise.core.settings_fleet import FleetSettings
from edgewise.security.keys import KeyStore
from tests.cloud.fleet_trust.doubles import make_fleet, served


@dataclass
class RunningFleet:
    url: str
    enrolment: EnrolmentService
    admin: Actor
    clock: FakeClock
    pem: Path
    """Certificate and key of its server."""

    async def code(self, **options: Any) -> str:
        view = await self.enrolment.add_code(self.admin, **{"auto_accept": True, **options})
        assert view.code is not None
        return view.code

    @property
    def ca_file(self) -> Path:
        return self.enrolment.authority.crl_file.parent / "ca.crt"


@pytest.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[RunningFleet]:
    home = tmp_path / "fleet"
    home.mkdir()
    clock = FakeClock(time.time())
    db = FleetDatabase(sqlite_url(home / "fleet.db"))
    Base.metadata.create_all(db.engine)
    tenant = await db.write(lambda session: ensure_tenant(session, FIRST_TENANT, now=0.0))
    keys = home / "cloud-keys.db"
    with KeyStore(keys) as store:
        store.create("somebody")
    told = FleetSettings(broker_url="mqtts://broker.example", cloud_url="https://cloud.example:8500", cloud_keys=keys)
    settings = Settings(home=home, fleet=told)
    enrolment = EnrolmentService(db, Changes(), settings, clock=clock)
    certificate, key = enrolment.authority.server_certificate(["127.0.0.1"], 365)
    pem = home / "server.pem"
    pem.write_text(certificate + key)
    app = FastAPI()
    add_api(app, make_fleet(None, enrolment=enrolment), settings.fleet)  # type: ignore[arg-type]
    async with served(app, ssl_certfile=str(pem)) as url:
        yield RunningFleet(url, enrolment, Actor(tenant=tenant, name="ada", role="admin"), clock, pem)
    db.close()
