"""The real fleet service on free ports, with one admin: `python -m tests.e2e.console.serve HOME [DEVICES]`.

Says its HTTP and MQTT port. With a number of devices its database has that many, as if they had been there once.
"""

from __future__ import annotations

import asyncio
import socket
import sys

import uvicorn
from sqlalchemy.orm import Session

from edgewise.cloud.fleet.app import FleetService
from edgewise.cloud.fleet.db.tables import FIRST_TENANT, DeviceModel
from edgewise.cloud.fleet.registry import add_device
from edgewise.cloud.fleet.serve import create_app
from edgewise.core.settings import load_settings
from scripts.service import free_port
from tests.fakes.fleet_services import FakeFleet

NAME, PASSWORD = "ada", "correct horse battery"


def enter(session: Session, count: int) -> None:
    """Devices with states, labels, models and newest values, made up from a seed."""
    for made in FakeFleet(count).devices.devices.values():
        row = add_device(session, FIRST_TENANT, made.uid, name=made.name, labels=made.labels)
        row.state, row.state_reason, row.state_at = made.state, made.state_reason, made.state_at
        row.seen_at, row.version, row.gauges, row.models = made.seen_at, made.version, made.gauges, list(made.models)
        session.add_all(DeviceModel(uid=made.uid, name=model["name"], loaded=True) for model in made.models)


async def run(home: str, count: int) -> None:
    mqtt = free_port()
    values = {"home": home, "mqtt.port": mqtt, "fleet.grace_s": 0.5}
    service = FleetService(load_settings(None, values, environ={}).settings)
    await service.start()
    await service.people.first_admin(NAME, PASSWORD)
    if count:
        await service.db.write(lambda session: enter(session, count))
    bound = socket.create_server(("127.0.0.1", 0))
    print(bound.getsockname()[1], mqtt, flush=True)
    config = uvicorn.Config(create_app(service), log_level="warning", lifespan="on", timeout_graceful_shutdown=1)
    await uvicorn.Server(config).serve(sockets=[bound])


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 0))
