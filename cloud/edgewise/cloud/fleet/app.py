"""The fleet service's composition root: database, link to the broker, what devices send, and what people do, in one process."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, Protocol

from sqlalchemy import func, select

from edgewise.cloud.fleet.actor import service as service_actor
from edgewise.cloud.fleet.alerts.make import make_alert_engine
from edgewise.cloud.fleet.alerts.service import AlertService
from edgewise.cloud.fleet.attendance import Attendance
from edgewise.cloud.fleet.audit_log import AuditService
from edgewise.cloud.fleet.changes import Changes
from edgewise.cloud.fleet.commands.service import CommandService
from edgewise.cloud.fleet.db.database import FleetDatabase, sqlite_url
from edgewise.cloud.fleet.db.migrate import migrate
from edgewise.cloud.fleet.db.tables import FIRST_TENANT, Device
from edgewise.cloud.fleet.downlink import USER, Downlink, host_will
from edgewise.cloud.fleet.enrolment.servers import ServerCertificates, server_files
from edgewise.cloud.fleet.enrolment.service import EnrolmentService
from edgewise.cloud.fleet.events import receive as receive_event
from edgewise.cloud.fleet.ingest import Ingest
from edgewise.cloud.fleet.metrics import FleetMetrics
from edgewise.cloud.fleet.people.service import PeopleService
from edgewise.cloud.fleet.registry import DeviceRegistry
from edgewise.cloud.fleet.rollouts.runner import RolloutRunner
from edgewise.cloud.fleet.rollouts.service import RolloutService
from edgewise.cloud.fleet.services import Fleet
from edgewise.cloud.fleet.shadows import ShadowService
from edgewise.cloud.fleet.syncs import Syncs
from edgewise.cloud.fleet.telemetry.keeper import TelemetryKeeper
from edgewise.cloud.fleet.telemetry.store import TelemetryStore
from edgewise.cloud.fleet.uplink import KINDS
from edgewise.core.clock import Clock, SystemClock
from edgewise.core.errors import EdgewiseError
from edgewise.core.files import make_folder
from edgewise.core.log import get_logger
from edgewise.core.metrics import Metrics
from edgewise.core.settings import Settings
from edgewise.wire import topics
from edgewise.wire.mqtt.connection import Broker
from edgewise.wire.mqtt.link import Link, LinkEvent
from edgewise.wire.mqtt.local_broker import LocalBroker
from edgewise.wire.mqtt.make import broker_of
from edgewise.wire.mqtt.session import SessionCounter
from edgewise.wire.mqtt.tasks import Tasks

log = get_logger(__name__)


class Runner(Protocol):
    """Work that goes on beside the answers to people: begun once the database is open, ended before it is closed."""

    def start(self) -> None: ...

    async def stop(self) -> None: ...


class FleetService:
    """All parts of one fleet service. `start` it in an event loop, `stop` it once.

    Raises:
        ConfigError: The database or broker cannot be as configured.
    """

    def __init__(self, settings: Settings, *, clock: Clock | None = None) -> None:
        fleet = settings.fleet
        clock = clock or SystemClock()
        make_folder(settings.home, mode=0o750)
        self.settings = settings
        self.name = socket.gethostname()
        self.registry_of_metrics = Metrics()
        self.metrics = FleetMetrics(self.registry_of_metrics)
        self.db = FleetDatabase(fleet.database or sqlite_url(settings.home / "fleet.db"))
        self.changes = Changes()
        self.link = self._make_link()
        self.downlink = Downlink(self.link)
        self.ingest = Ingest(self.db, self.changes, self.downlink.received, self.metrics, clock=clock)
        self.attendance = Attendance(self.db, self.changes, grace_s=fleet.grace_s, clock=clock)
        self._syncs = Syncs(clock=clock)
        self._tasks = Tasks()
        self._broker = LocalBroker(port=settings.mqtt.port) if fleet.broker == "local" else None
        self._started = False
        telemetry = TelemetryStore(self.db, fleet, clock=clock)
        self.shadows = ShadowService(self.db, self.changes, self.downlink, clock=clock)
        self.commands = CommandService(self.db, self.changes, self.downlink, self.metrics, clock=clock)
        registry = DeviceRegistry(self.db, self.changes, self.downlink, clock=clock)
        self.people = PeopleService(self.db, self.changes, fleet, clock=clock)
        self.alerts = AlertService(self.db, registry, self.changes, clock=clock)
        self.enrolment = EnrolmentService(self.db, self.changes, settings, clock=clock)
        self.fleet = Fleet(
            registry=registry,
            telemetry=telemetry,
            shadows=self.shadows,
            commands=self.commands,
            rollouts=RolloutService(self.db, registry, self.changes, clock=clock),
            alerts=self.alerts,
            people=self.people,
            enrolment=self.enrolment,
            audit=AuditService(self.db),
            changes=self.changes,
        )
        self.runners: list[Runner] = [
            self.ingest,
            self._syncs,
            self.attendance,
            TelemetryKeeper(self.db, fleet, clock=clock),
            RolloutRunner(self.db, registry, self.shadows, self.commands, self.changes, clock=clock),
            self.enrolment,
            ServerCertificates(self.enrolment.authority, server_files(settings)),
            make_alert_engine(settings, self.db, registry, self.changes, clock=clock),
        ]
        self.attendance.register(self.ingest)
        self.shadows.register(self.ingest, self._syncs)
        self.commands.register(self.ingest, self._syncs)
        telemetry.register(self.ingest)
        self.ingest.on("evt", receive_event)
        self.ingest.on("sync", after=self._syncs.after)

    # --- life ------------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Open the database, start the broker if it is ours, and begin. Safe to call again.

        Raises:
            EdgewiseError: It cannot be started as configured; `stop` then ends what has begun.
        """
        if self._started:
            return
        self._started = True
        await migrate(self.db)
        if self._broker is not None:
            await asyncio.to_thread(self._broker.start)
        await self.alerts.add_defaults(service_actor(FIRST_TENANT, "first start"))
        await self.commands.start()
        for runner in self.runners:
            runner.start()
        self.link.start()

    async def stop(self) -> None:
        """Tell the devices, end, close."""
        await self.link.stop(self.downlink.farewell(self.name))
        await self._tasks.end()
        await self.commands.stop()
        for runner in reversed(self.runners):
            await runner.stop()
        if self._broker is not None:
            await asyncio.to_thread(self._broker.stop)
        self.people.close()
        self.db.close()

    async def trouble(self) -> str | None:
        """Why it is not ready; None if it is."""
        try:
            await self.db.read(lambda session: session.scalar(select(1)))
        except EdgewiseError as error:
            return error.message
        if not self.link.connected:
            return self.link.stopped_because or "the broker is not connected"
        return None

    async def count_devices(self) -> None:
        """Bring the metrics up to date."""
        query = select(Device.state, func.count()).where(Device.retired_at.is_(None)).group_by(Device.state)
        self.metrics.devices(
            {row[0]: row[1] for row in await self.db.read(lambda session: session.execute(query).all())}
        )

    # --- the link --------------------------------------------------------------------------------------------------------

    def _make_link(self) -> Link:
        mqtt = self.settings.mqtt
        if self.settings.fleet.broker == "local":
            broker = Broker(host="127.0.0.1", port=mqtt.port, uid=USER, keepalive_s=mqtt.keepalive_s)
        else:
            broker = replace(broker_of(mqtt, USER), uid=USER)
        link = Link(
            replace(broker, keep_session=False),  # devices send again what was not acknowledged by the service itself
            SessionCounter(self.settings.home / "fleet-session"),
            will=lambda ep: host_will(ep, self.name),
            birth=self._birth,
            on_event=self._on_event,
            probe=True,
        )
        for kind in KINDS:
            link.on(topics.up(kind), lambda incoming: self.ingest.take(incoming))
        return link

    async def _birth(self) -> None:
        """After each connect: say that the fleet is there, and what could not be said before."""
        await self.downlink.host_live(self.name)
        self._spawn(self.shadows.linked, "desired")
        self._spawn(self.commands.linked, "commands")

    def _spawn(self, work: Callable[[], Coroutine[Any, Any, None]], what: str) -> None:
        self._tasks.spawn(work(), what)

    def _on_event(self, event: LinkEvent) -> None:
        self.metrics.linked.set(event.kind == "up")
        if event.kind == "up":
            self.attendance.began()
