"""The door: every job comes in here, over HTTP or MQTT, and every stream and word of a tenant about its job goes through here."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import AsyncGenerator, Callable, Mapping

from edgewise.cloud.blobs import BlobStore
from edgewise.cloud.intake.catalog import Catalog
from edgewise.cloud.intake.streams import StreamPlace, Streams
from edgewise.cloud.jobs.records import Job
from edgewise.cloud.jobs.reserve import most_of
from edgewise.cloud.jobs.table import JobTable
from edgewise.cloud.tenants import Tenants
from edgewise.cloud.work import check_work
from edgewise.cloud.workers import Workers
from edgewise.core.clock import Clock, SystemClock
from edgewise.core.errors import KeyReused, NotFound, NotPermitted, ShuttingDown
from edgewise.core.priority import Priority, priority_of
from edgewise.wire.messages import Accepted, Chunk, CloudInfo, Final, JobControl, JobRequest, Work
from edgewise.wire.stream_log import START, Place, parse_place


class Intake:
    """Args:
    name, residency: What the cloud calls itself, and where it computes.
    site: It belongs to the site of its devices.
    draining: Whether the service is ending.
    """

    def __init__(
        self,
        table: JobTable,
        blobs: BlobStore,
        tenants: Tenants,
        workers: Workers,
        catalog: Catalog,
        *,
        name: str,
        residency: str = "",
        site: bool = False,
        max_request_bytes: int = 8 * 1024**2,
        draining: Callable[[], bool] = lambda: False,
        clock: Clock | None = None,
    ) -> None:
        self.blobs = blobs
        self.catalog = catalog
        self._table = table
        self._tenants = tenants
        self._streams = Streams(tenants.streams)
        self._workers = workers
        self._residency = residency
        self._site = site
        self._max_request_bytes = max_request_bytes
        self._name = name
        self._draining = draining
        self._clock = clock or SystemClock()

    def __repr__(self) -> str:
        return f"Intake({self._name})"

    async def info(self, tenant: str) -> CloudInfo:
        """What the tenant can have here."""
        queues = await self._table.queues()
        return CloudInfo(
            name=self._name,
            tenant=tenant,
            residency=self._residency,
            site=self._site,
            models=await self.catalog.models(),
            queue_s={one.label: round(self._workers.wait_s(queues, one), 3) for one in Priority},
            max_request_bytes=self._max_request_bytes,
            max_blob_bytes=self.blobs.max_bytes,
        )

    async def submit(self, tenant: str, request: JobRequest) -> Accepted:
        """Put a job into the table, once: a repeat is answered with the job that is there.

        Raises:
            NotPermitted: Its label keeps it from here.
            InvalidRequest: It could never run.
            ModelNotFound: Its model is not here, or another one has its name.
            KeyReused: Its key is that of other work.
            QueueFull: The queue is full, or a quota of the tenant; `retry_after_s` says when to come again.
            ShuttingDown: The service is ending.
        """
        with contextlib.suppress(NotFound):
            return await self._known(tenant, request)
        if self._draining():
            raise ShuttingDown("The cloud is shutting down: try again shortly.", retry_after_s=5.0)
        if request.privacy == "private":
            raise NotPermitted(
                "Work labelled 'private' stays on its device: a cloud does not take it.", param="privacy"
            )
        if request.privacy == "site" and not self._site:
            raise NotPermitted(
                "Work labelled 'site' stays at its site, and this engine does not say that it is there: set intake.site.",
                param="privacy",
            )
        check_work(request.work)
        model = await self.catalog.find(request.work)
        queue_s = await self.queue_s(request)

        most = most_of(request.work, model)

        def admit(db: sqlite3.Connection) -> None:
            self._tenants.admit(db, tenant, self._clock.time(), queue_s, most)

        job, _ = await self._table.submit(tenant, request, model, admit=admit)
        return _accepted(job, queue_s)

    async def get(self, tenant: str, id: str) -> Job:
        """Raises `NotFound`."""
        return await self._table.get(tenant, id)

    async def find(self, tenant: str, device: str, key: str) -> Job:
        """The job of a device by its idempotency key. Raises `NotFound`."""
        return await self._table.find(tenant, device, key)

    async def check_place(self, tenant: str, id: str, after: Place) -> Job:
        """Raises what `events` would raise."""
        return await self._table.check_place(tenant, id, after)

    def events(self, tenant: str, id: str, after: Place = START) -> AsyncGenerator[Chunk | Final, None]:
        """See `JobTable.events`.

        Raises:
            QueueFull: The tenant has as many streams open as it may; at once, before anything is read.
        """
        return _placed(self._streams.open(tenant, id), self._table.events(tenant, id, after))

    async def control(self, tenant: str, id: str, control: JobControl) -> Job:
        """What a consumer says of its job: acknowledge or cancel; the other words concern its link alone."""
        if control.op == "cancel":
            return await self._table.cancel(tenant, id)
        if control.op == "ack":
            job = await self._table.ack(tenant, id, parse_place(control.after, param="after"), done=control.done)
            if not job.kept:
                await self.blobs.sweep()
            return job
        return await self._table.get(tenant, id)

    async def queue_s(self, request: JobRequest) -> float:
        """Estimated wait of a new job."""
        return self._workers.wait_s(await self._table.queues(), priority_of(request.priority))

    async def _known(self, tenant: str, request: JobRequest) -> Accepted:
        job = await self._table.find(tenant, request.device, request.key)
        before = await self._table.work_of(job.id)
        if before is not None and _same(before) != _same(request.work):
            raise KeyReused(f"The key '{request.key}' belongs to a job with other work: draw a new key.", param="key")
        return _accepted(job, 0.0 if job.state != "queued" else await self.queue_s(request))


async def _placed(
    place: StreamPlace, events: AsyncGenerator[Chunk | Final, None]
) -> AsyncGenerator[Chunk | Final, None]:
    """A stream that gives its place back at its end."""
    with place:
        async with contextlib.aclosing(events):
            async for event in events:
                yield event


def _accepted(job: Job, queue_s: float) -> Accepted:
    return Accepted(id=job.id, state=job.state, attempt=job.attempt, offset=job.count, queue_s=round(queue_s, 3))


def _same(work: Work) -> Mapping[str, object]:
    """What makes work the same: all but the part of the stream that the device has."""
    return work.model_dump(exclude={"output"})
