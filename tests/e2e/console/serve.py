"""The real fleet service on free ports, with one admin: `python -m tests.e2e.console.serve HOME`. Says its HTTP and MQTT port."""

from __future__ import annotations

import asyncio
import socket
import sys

import uvicorn

from edgewise.cloud.fleet.app import FleetService
from edgewise.cloud.fleet.serve import create_app
from edgewise.core.settings import load_settings
from scripts.service import free_port

NAME, PASSWORD = "ada", "correct horse battery"


async def run(home: str) -> None:
    mqtt = free_port()
    values = {"home": home, "mqtt.port": mqtt, "fleet.grace_s": 0.5}
    service = FleetService(load_settings(None, values, environ={}).settings)
    await service.start()
    await service.people.first_admin(NAME, PASSWORD)
    bound = socket.create_server(("127.0.0.1", 0))
    print(bound.getsockname()[1], mqtt, flush=True)
    config = uvicorn.Config(create_app(service), log_level="warning", lifespan="on", timeout_graceful_shutdown=1)
    await uvicorn.Server(config).serve(sockets=[bound])


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1]))
