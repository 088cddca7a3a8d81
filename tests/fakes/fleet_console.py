"""Serves the console over the double of the fleet's services: `python -m tests.fakes.fleet_console PORT COUNT`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvicorn
from fastapi import FastAPI

from edgewise.cloud.console.app import mount_console
from edgewise.cloud.fleet.api.app import add_api
from edgewise.core.settings_fleet import FleetSettings
from tests.fakes.fleet_services import FakeFleet


def make_app(count: int) -> FastAPI:
    fake = FakeFleet(count)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        live = asyncio.create_task(fake.live())
        yield
        live.cancel()

    app = FastAPI(lifespan=lifespan)
    settings = FleetSettings()
    add_api(app, fake.fleet, settings)
    mount_console(app, fake.fleet, settings)
    return app


if __name__ == "__main__":
    uvicorn.run(make_app(int(sys.argv[2])), host="127.0.0.1", port=int(sys.argv[1]), log_level="warning")
