"""Serves the console over the double of the fleet's services: `python -m tests.fakes.fleet_console PORT COUNT`.

It says its port on standard output; lines on its standard input turn the double: `state UID STATE`, `apply UID`,
`heat UID REASON`, `end-sessions`.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvicorn
from fastapi import FastAPI

from edgewise.cloud.console.app import mount_console
from edgewise.cloud.fleet.api.app import add_api
from edgewise.core.settings_fleet import FleetSettings
from tests.fakes.fleet_services import FakeFleet


def make_app(fake: FakeFleet) -> FastAPI:
    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        live = asyncio.create_task(fake.live())
        asyncio.get_running_loop().add_reader(sys.stdin, lambda: turn(fake, sys.stdin.readline().split()))
        yield
        live.cancel()

    app = FastAPI(lifespan=lifespan)
    settings = FleetSettings()
    add_api(app, fake.fleet, settings)
    mount_console(app, fake.fleet, settings)
    return app


def turn(fake: FakeFleet, words: list[str]) -> None:
    match words:
        case ["state", uid, state]:
            fake.devices.set_state(uid, state)  # type: ignore[arg-type]
        case ["apply", uid]:
            fake.devices.apply(uid, "config")
        case ["heat", uid, *reason]:
            fake.devices.heat(uid, " ".join(reason))
        case ["end-sessions"]:
            fake.people.sessions.clear()
        case []:  # whoever started this has gone
            asyncio.get_running_loop().remove_reader(sys.stdin)


def main() -> None:
    port, count = int(sys.argv[1]), int(sys.argv[2])
    bound = socket.create_server(("127.0.0.1", port))
    print(bound.getsockname()[1], flush=True)
    server = uvicorn.Server(
        uvicorn.Config(make_app(FakeFleet(count)), log_level="warning", timeout_graceful_shutdown=1)
    )
    server.run(sockets=[bound])


if __name__ == "__main__":
    main()
