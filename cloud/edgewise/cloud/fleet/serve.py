"""Runs the fleet service: its parts behind an HTTP server, until a stop signal."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse

from edgewise.cloud.console.app import mount_console
from edgewise.cloud.fleet.api.app import add_api
from edgewise.cloud.fleet.api.auth import Caller, caller
from edgewise.cloud.fleet.app import FleetService
from edgewise.cloud.fleet.enrolment.authority import Authority
from edgewise.cloud.fleet.enrolment.servers import follow_tls, renew_servers
from edgewise.cloud.fleet.enrolment.service import authority_folder
from edgewise.core.addresses import is_loopback
from edgewise.core.files import alone
from edgewise.core.log import configure_logging, get_logger
from edgewise.core.patience import end_task
from edgewise.core.sdnotify import Notifier
from edgewise.core.settings import LoadedSettings, Settings
from edgewise.security.tls import TlsFiles, check_tls
from edgewise.serving.server import DrainingServer, listen

log = get_logger(__name__)


def serve(loaded: LoadedSettings) -> int:
    """Run until a stop signal; the exit code.

    Raises:
        EdgewiseError: It cannot be started as configured; nothing is running then.
    """
    fleet = loaded.settings.fleet
    settings = loaded.settings.model_copy(update={"host": fleet.host, "port": fleet.port})
    configure_logging(level=settings.log.level, format=settings.log.format, prompts=settings.log.prompts)
    notifier = Notifier.from_environ()
    with alone(settings.home, "fleet.lock", "fleet service"):
        if settings.tls.cert is not None:  # its end may have come while the service was down
            renew_servers(Authority(authority_folder(settings.home)), [settings.tls.cert])
        tls = check_tls(settings.tls.cert, settings.tls.key)
        return asyncio.run(_run(settings, tls, notifier))


def create_app(service: FleetService) -> FastAPI:
    """The HTTP application; its lifespan starts and stops the service."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await service.start()
        try:
            yield
        finally:
            await service.stop()

    app = FastAPI(title="Edgewise fleet", lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)

    @app.get("/healthz", include_in_schema=False)
    async def healthz() -> Response:
        return JSONResponse({"status": "ok"})

    @app.get("/readyz", include_in_schema=False)
    async def readyz() -> Response:
        trouble = await service.trouble()
        return JSONResponse(
            {"status": "ready"} if trouble is None else {"status": "not ready", "reason": trouble},
            status_code=200 if trouble is None else 503,
        )

    @app.get("/openapi.json", include_in_schema=False)
    async def openapi(_: Caller) -> Response:
        return JSONResponse(app.openapi())

    @app.get("/metrics", include_in_schema=False)
    async def metrics(request: Request) -> Response:
        if not is_loopback(service.settings.fleet.host):
            await caller(request)
        await service.count_devices()
        body, content_type = service.registry_of_metrics.render(request.headers.get("accept", ""))
        return Response(body, media_type=content_type)

    add_api(app, service.fleet, service.settings.fleet)
    mount_console(app, service.fleet, service.settings.fleet)
    return app


async def _run(settings: Settings, tls: TlsFiles | None, notifier: Notifier) -> int:
    sockets = listen(settings.host, settings.port)
    service = FleetService(settings)
    try:
        await service.start()
        await _offer_first_login(service, settings.host)
    except BaseException:
        await service.stop()
        for bound in sockets:
            bound.close()
        raise
    app, loop = create_app(service), asyncio.get_running_loop()

    def close() -> None:
        """Open streams end first: the server waits for them."""
        app.state.fleet_api.closing.set()
        server.close()

    def stop() -> None:
        """Called from a signal handler, which interrupts the event loop at any point."""
        loop.call_soon_threadsafe(close)

    server = DrainingServer(_config(settings, app, tls), on_stop=stop)
    url = settings.model_copy(update={"port": sockets[0].getsockname()[1]}).base_url
    if tls is None and not is_loopback(settings.host):
        log.warning("plain_http", host=settings.host, risk="passwords and keys cross the network in the clear")
    log.info("ready", url=url)
    notifier.ready(f"fleet at {url}")
    beside = [asyncio.create_task(_watchdog(notifier), name="watchdog")]
    if tls is not None:
        follow = follow_tls(tls, lambda: getattr(server.config, "ssl", None))
        beside.append(asyncio.create_task(follow, name="fleet-tls"))
    try:
        await server.serve(sockets=sockets)
    finally:
        await end_task(*beside)
    log.info("stopped")
    return 0 if server.started else 1


async def _offer_first_login(service: FleetService, host: str) -> None:
    """A service that nobody can log in to yet: at a terminal of this machine it makes the first admin and shows the password
    once. A log is no place for a password, and a service that others reach is not opened unasked."""
    if await service.people.anybody():
        return
    if not is_loopback(host) or "JOURNAL_STREAM" in os.environ:
        log.warning("no_users", remedy="edgewise fleet users add NAME --role admin --local")
        return
    password = await service.people.first_admin()
    if password is not None:
        print(f"First start: log in as `admin` with the password {password} (shown this once).", file=sys.stderr)


async def _watchdog(notifier: Notifier) -> None:
    interval = notifier.watchdog_interval_s
    while interval is not None:
        notifier.watchdog()
        await asyncio.sleep(interval)


def _config(settings: Settings, app: FastAPI, tls: TlsFiles | None) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        log_config=None,
        log_level="warning",  # what it says of its start and stop stands in our own events
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=2,
        timeout_keep_alive=30,
        lifespan="on",
        **(tls.uvicorn_options() if tls else {}),  # type: ignore[arg-type]
    )
