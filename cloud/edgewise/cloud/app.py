"""The cloud engine's composition root: what a service is extended with to take jobs."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator, Sequence
from dataclasses import replace

from fastapi import APIRouter

from edgewise.api.deps import ApiDependencies
from edgewise.cloud.blobs import BlobStore
from edgewise.cloud.executors.http import HttpExecutor
from edgewise.cloud.executors.local import LocalExecutor
from edgewise.cloud.executors.protocol import Executor
from edgewise.cloud.executors.ray import RayExecutor
from edgewise.cloud.executors.ray_models import installed_config
from edgewise.cloud.faces import Faces, faces_router
from edgewise.cloud.intake.blob_routes import blobs_router
from edgewise.cloud.intake.catalog import Catalog
from edgewise.cloud.intake.intake import Intake
from edgewise.cloud.intake.routes import jobs_router
from edgewise.cloud.jobs.schema import jobs_file, open_jobs
from edgewise.cloud.jobs.table import JobTable
from edgewise.cloud.metrics import CloudMetrics
from edgewise.cloud.mqtt_intake import USER as MQTT_USER
from edgewise.cloud.mqtt_intake import MqttIntake
from edgewise.cloud.readiness import BackEndReadiness
from edgewise.cloud.tenants import Tenants, tenant_of_device
from edgewise.cloud.workers import Workers
from edgewise.core.ending import Endings
from edgewise.core.errors import ConfigError, EdgewiseError
from edgewise.core.files import alone, read_secret
from edgewise.core.log import get_logger
from edgewise.core.patience import end_task
from edgewise.core.settings import LoadedSettings, Settings
from edgewise.models.store import Store
from edgewise.security.keys import KeyStore
from edgewise.serving import service
from edgewise.serving.service import Part
from edgewise.wire.mqtt.make import make_link

log = get_logger(__name__)

_AGAIN_S = 5.0  # after a fault of the disk


def serve(loaded: LoadedSettings) -> int:
    """Run the cloud engine until a stop signal; see `serving.service.serve`. It listens where `[intake]` says.

    Raises:
        FolderInUse: Another cloud engine uses the state directory.
    """
    intake = loaded.settings.intake
    settings = loaded.settings.model_copy(update={"host": intake.host, "port": intake.port})
    with alone(settings.home, "cloud.lock", "cloud engine"):
        preload = intake.executor == "local"  # the engines of others are elsewhere
        return service.serve(replace(loaded, settings=settings), cloud_parts, preload=preload)


def cloud_parts(settings: Settings, deps: ApiDependencies) -> Iterator[Part]:
    """Intake, job table and workers; the intake over MQTT too where a broker is named."""
    cloud = CloudPart(settings, deps)
    yield cloud
    if settings.mqtt.host is not None:
        yield MqttIntake(
            cloud.intake,
            make_link(settings.mqtt, settings.home, MQTT_USER),
            tenant=lambda uid: tenant_of_device(cloud.keys, uid, deps.clock.time()),
            dropped=cloud.count_dropped,
            emit=deps.events.emit,
        )


class CloudPart:
    """Implements `serving.service.Part`."""

    def __init__(self, settings: Settings, deps: ApiDependencies) -> None:
        intake = settings.intake
        database = open_jobs(jobs_file(settings.home))
        self._deps = deps
        self.keys = KeyStore(settings.keys_file)
        self._max_request_bytes = intake.max_request_bytes
        self.executor = make_executor(settings, deps)
        self._table = JobTable(
            database,
            lease_s=intake.lease_s,
            max_attempts=intake.max_attempts,
            retain_s=intake.retain_s,
            unclaimed_s=intake.unclaimed_s,
            ageing_s=settings.engine.ageing_s,
        )
        blobs = BlobStore(
            database,
            settings.home / "cloud-blobs",
            max_bytes=intake.max_blob_bytes,
            tenant_bytes=intake.tenant_blob_bytes,
        )
        tenants = Tenants(intake.quotas, intake.prices, max_queued=intake.max_queued)
        metrics = CloudMetrics(deps.metrics.registry)
        self.count_dropped = metrics.dropped.labels("mqtt").inc
        self._workers = Workers(
            self._table,
            blobs,
            self.executor,
            metrics,
            count=intake.workers,
            lease_s=intake.lease_s,
        )
        self._catalog = Catalog(self.executor, tenants)
        self.intake = Intake(
            self._table,
            blobs,
            tenants,
            self._workers,
            self._catalog,
            name=socket.gethostname(),
            residency=intake.residency,
            site=intake.site,
            max_request_bytes=intake.max_request_bytes,
            draining=lambda: deps.draining,
        )
        self._faces = Faces(Store(settings.home / "models"), deps.models)
        self._main: asyncio.Task[None] | None = None
        self._closed: str | None = "the job table is being opened"
        deps.readiness.also(self._opened)
        if not isinstance(self.executor, LocalExecutor):  # whose models have probes of their own
            ready = BackEndReadiness(
                self.executor,
                self._catalog,
                lambda: self._workers.answered_s,
                clock=deps.clock,
                max_age_s=deps.ready_max_age_s,
            )
            deps.readiness.also(ready.check)

    @property
    def routers(self) -> Sequence[APIRouter]:
        limit = self._deps.limits.body_timeout_s
        return (
            jobs_router(self._deps, self.intake, max_request_bytes=self._max_request_bytes),
            blobs_router(self.intake.blobs, silence_s=limit),
            faces_router(self._faces),
        )

    def start(self) -> None:
        self._main = asyncio.create_task(self._run(), name="cloud")

    async def stop(self) -> None:
        async with Endings() as endings:
            endings.add("the keys of the intake", self.keys.close)
            endings.add("the job table", self._table.close)
            endings.add("the back end", self.executor.stop)
            endings.add("the catalog", self._catalog.stop)
            endings.add("the workers", self._workers.stop)
            await end_task(self._main)

    async def _run(self) -> None:
        """Take over what an earlier process left, work, and give everything back when the service drains."""
        while True:
            try:
                recovered = await self._table.recover()
                break
            except EdgewiseError as error:
                log.error("jobs_not_opened", reason=error.message)
                self._closed = f"the job table cannot be opened: {error.message}"
                await asyncio.sleep(_AGAIN_S)
        log.info("jobs_opened", recovered=recovered)
        self._closed = None
        self.executor.start()
        self._workers.start()
        await self._deps.requests.wait_drain()
        await self._workers.drain()

    async def _opened(self) -> str | None:
        return self._closed or self._workers.trouble


def make_executor(settings: Settings, deps: ApiDependencies) -> Executor:
    """The back end that the settings name.

    Raises:
        ConfigError: It needs a setting or a package that is not there.
    """
    intake = settings.intake
    if intake.executor == "local":
        return LocalExecutor(deps.models)
    if intake.executor == "http":
        if intake.upstream is None:
            raise ConfigError(
                '`intake.executor` is "http": set `intake.upstream` to the address of the server behind it'
            )
        key = (
            None
            if intake.upstream_key_file is None
            else read_secret(intake.upstream_key_file, "intake.upstream_key_file")
        )
        return HttpExecutor(intake.upstream, key, metrics=deps.metrics.registry)
    return RayExecutor(
        deps.models,
        installed_config(settings),
        replicas=intake.replicas,
        address=intake.ray_address,
        metrics=deps.metrics.registry,
    )
