"""The agent as a part of the device service: puts its pieces together, begins and ends them, and watches over them.

Nothing here waits for a network: the service starts and answers without one, and the agent goes on when there is one.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

from fastapi import APIRouter

from edgewise.api.deps import ApiDependencies
from edgewise.core.errors import EdgewiseError, StorageError
from edgewise.core.log import RecentLines, get_logger
from edgewise.core.patience import end_task
from edgewise.core.settings import LoadedSettings
from edgewise.edge.agent.commands.desk import Desk
from edgewise.edge.agent.commands.inbox import Inbox
from edgewise.edge.agent.commands.operation import DAY_S, Operation
from edgewise.edge.agent.commands.record import Record
from edgewise.edge.agent.desired import DesiredState
from edgewise.edge.agent.facts import Facts, sync_of
from edgewise.edge.agent.mail import Letter, Mail
from edgewise.edge.agent.moments import Moments
from edgewise.edge.agent.ops.diagnose import diagnose
from edgewise.edge.agent.ops.infer import infer
from edgewise.edge.agent.ops.lifecycle import drain, restart
from edgewise.edge.agent.ops.logs import logs
from edgewise.edge.agent.ops.models import model_operations
from edgewise.edge.agent.ops.ping import ping
from edgewise.edge.agent.ops.software import software
from edgewise.edge.agent.ops.trial import trial
from edgewise.edge.agent.presence import STARTED, Presence
from edgewise.edge.agent.schema import open_agent
from edgewise.edge.agent.telemetry.batches import TelemetryTask
from edgewise.edge.agent.telemetry.meter import Meter
from edgewise.edge.agent.uplink.uplink import Uplink
from edgewise.edge.broker import BrokerLink
from edgewise.edge.hardware.watch import HardwareWatch
from edgewise.edge.twin.installer import Installer
from edgewise.wire import topics
from edgewise.wire.envelope import decode
from edgewise.wire.fleet import Ack, HostLive, Severity, Sync

log = get_logger(__name__)

_WATCH_S = 10.0
_TIDY_S = 600.0
_RETRY_S = 5.0
_SPREAD_S = 5.0  # over which the devices of a fleet tell it again what it may have missed
_TOLD: dict[str, Severity] = {
    "engine_crashed": "warning",
    "engine_failed": "critical",
    "governor_slows": "warning",
    "governor_eases": "info",
    "mqtt_clone": "critical",
    "mqtt_unfit": "critical",
}
"""Events of the service that the fleet hears of."""


class Agent:
    """See docs/agent.md. The link is shared with other parts: who made it ends it, after this.

    Raises:
        StorageError: The machine does not tell its boot id.
    """

    def __init__(
        self, loaded: LoadedSettings, deps: ApiDependencies, broker: BrokerLink, hardware: HardwareWatch
    ) -> None:
        settings, link, clock = loaded.settings, broker.link, deps.clock
        self._agent = settings.agent
        self._deps = deps
        self._link = link
        moments = Moments(clock)
        self._recent = RecentLines()
        self._database = open_agent(settings.home / "agent.db")
        self._uplink = uplink = Uplink(settings, link, self._database, moments, clock)
        self._inbox = Inbox(self._database, uplink.rows, moments, link.uid)
        self._meter = Meter(deps, hardware, hardware.joules)
        self._telemetry = TelemetryTask(self._meter, uplink, moments, link.uid, period_s=settings.agent.telemetry_s)
        installer = Installer(settings, deps.models)
        self._desired = DesiredState(
            loaded, deps, link, self._database, uplink, self._telemetry, installer, ends=self._ends
        )
        operations = {
            operation.name: operation
            for operation in (
                ping(clock),
                infer(deps),
                *model_operations(deps.models, installer),
                restart(deps, boot=moments.boot, started=STARTED, ends=self._ends),
                drain(deps),
                logs(self._recent, uplink.log_part),
                diagnose(deps, link, settings.home),
                trial(deps, installer, hardware.joules),
                software(),
            )
        }
        self._facts = facts = Facts(settings, deps, link, hardware, installer, boot=moments.boot, ops=[*operations])
        self._presence = Presence(link, birth=facts.birth, sync=self._sync, on_born=self._born)
        broker.present(self._presence)
        self._desk = self._make_desk(operations, moments)
        self._mail = Mail(
            link,
            clock,
            {"cmd": self._desk.command, "ctl": self._desk.control, "des": self._take_desired, "host": self._host},
        )
        self._host_ep = -1
        self._told_probe = False
        self._telling: asyncio.Task[None] | None = None
        self._tasks: list[asyncio.Task[None]] = []

    def __repr__(self) -> str:
        return f"Agent({self._link.uid}, connected={self._link.connected})"

    @property
    def routers(self) -> Sequence[APIRouter]:
        return ()

    def _make_desk(self, operations: dict[str, Operation], moments: Moments) -> Desk:
        return Desk(
            self._link,
            self._inbox,
            self._uplink.sender,
            operations,
            moments,
            self._deps.clock,
            on_full=self._uplink.reserve.free,
            on_retained=self._refuse_retained,
            on_end=self._command_ended,
        )

    # --- life ------------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._recent.attach()
        self._spawn(self._begin(), "agent-begin")
        self._spawn(self._watch(), "agent-watch")
        self._spawn(self._say_drain(), "agent-drain")
        self._spawn(self._pass_events_on(), "agent-events")

    async def stop(self) -> None:
        self._presence.close()
        await end_task(*self._tasks, self._telling)
        await self._mail.stop()
        await self._desk.stop()
        await self._desired.twin.stop()
        await self._telemetry.stop()
        await self._uplink.sender.stop()
        await asyncio.to_thread(self._database.close)
        self._recent.detach()

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        self._tasks.append(asyncio.create_task(work, name=name))

    async def _begin(self) -> None:
        """What is on disk is taken before the first message is. A disk that refuses holds up commands, not the service, and the
        device is there all the same."""
        await self._surely(self._uplink.start)
        await self._surely(self._desired.start)
        self._desk.lanes.start()
        self._telemetry.start()
        self._mail.start()
        self._link.start()
        await self._surely(self._desired.prove)

    async def _surely(self, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                return await work()
            except EdgewiseError as error:
                log.warning("agent_waits", reason=error.message)
                self._link.start()
                await self._deps.clock.sleep(_RETRY_S)

    def _ends(self, reason: str, expected_s: float | None) -> None:
        self._presence.ends(reason, expected_s)

    # --- watching --------------------------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        tidied_at = float("-inf")
        while True:
            try:
                await self._look_after()
                if self._deps.clock.monotonic() - tidied_at >= _TIDY_S:
                    tidied_at = self._deps.clock.monotonic()
                    await self._inbox.prune(self._agent.keep_days * DAY_S, self._agent.outbox_bytes)
            except EdgewiseError as error:
                log.warning("agent_waits", reason=error.message)
            except Exception:  # outermost frame of a task
                log.exception("agent_watch_broke")
            await self._deps.clock.sleep(_WATCH_S)

    async def _look_after(self) -> None:
        if self._link.revive():
            message = "The task that keeps the link to the broker had ended; it was begun again."
            await self._uplink.event("link_task_died", "warning", message)
        await self._uplink.look_after()
        if self._link.connected:
            await self._desired.report_changes()
            if self._link.found is not None and not self._told_probe:
                await self._presence.tell_birth()
                self._told_probe = True

    async def _say_drain(self) -> None:
        await self._deps.requests.wait_drain()
        try:
            await self._presence.draining("the service finishes what it has begun")
        except EdgewiseError as error:
            log.info("drain_not_told", reason=error.message)

    async def _pass_events_on(self) -> None:
        async for event in self._deps.events.follow():
            if event.kind in _TOLD:
                await self._uplink.event(event.kind, _TOLD[event.kind], event.message, **event.fields)

    # --- at each connect -------------------------------------------------------------------------------------------------

    async def _sync(self) -> Sync:
        return await sync_of(self._inbox, self._uplink.rows, self._desired.twin)

    async def _born(self) -> None:
        self._uplink.sender.link_up()
        self._telemetry.soon()
        await self._desired.twin.report_all()

    # --- what arrives ----------------------------------------------------------------------------------------------------

    async def _host(self, letter: Letter) -> None:
        """The fleet comes or goes. The will of its last session may arrive after it has come again.

        One that comes may have missed all that was said while it was away, so it is said again. One that was there already,
        which the broker's retained word says, has not."""
        envelope = decode(letter.payload)
        host = envelope.read(HostLive)
        if host.state == "offline" and envelope.ep < self._host_ep:
            return
        self._host_ep = envelope.ep
        self._uplink.sender.host_said(host)
        if host.state != "online":
            return
        if letter.retained:
            self._telemetry.soon()
        else:
            if self._telling is not None:
                self._telling.cancel()  # what it has said may have been to a fleet that was about to end
            self._telling = asyncio.create_task(self._tell_again(), name="agent-tell-again")

    async def _tell_again(self) -> None:
        """All that a fleet which has come may have missed, not in the same moment as every other device."""
        await self._deps.clock.sleep(random.uniform(0.0, _SPREAD_S))  # noqa: S311 - spreads load, hides nothing
        try:
            await self._presence.tell_sync()
            await self._born()
        except EdgewiseError as error:  # the next connect tells it
            log.info("not_told_again", reason=error.message)

    async def _take_desired(self, letter: Letter) -> None:
        try:
            await self._desired.twin.desired(letter.name, letter.payload)
        except StorageError:
            await self._uplink.reserve.free()
            await self._desired.twin.desired(letter.name, letter.payload)

    async def _refuse_retained(self, op: str) -> None:
        topic = topics.command(self._link.uid, op)
        message = (
            f"A command '{op}' is retained at the broker and was not done: clear it with an empty retained message."
        )
        await self._uplink.event("retained_command", "warning", message, op=op, topic=topic)

    def _command_ended(self, record: Record, ack: Ack) -> None:
        if record.op == "infer":
            self._meter.answered(ack)
