"""The agent as a part of the device service: puts its pieces together, begins and ends them, and watches over them.

Nothing here waits for a network: the service starts and answers without one, and the agent goes on when there is one.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Coroutine, Sequence
from typing import Any

from fastapi import APIRouter

from edgewise.api.deps import ApiDependencies
from edgewise.core.errors import EdgewiseError, StorageError
from edgewise.core.log import get_logger
from edgewise.core.settings import Settings
from edgewise.edge.agent.commands.desk import Desk
from edgewise.edge.agent.commands.inbox import Inbox
from edgewise.edge.agent.commands.operation import DAY_S, Operation
from edgewise.edge.agent.mail import Letter, Mail
from edgewise.edge.agent.moments import Moments
from edgewise.edge.agent.ops.infer import infer
from edgewise.edge.agent.ops.ping import ping
from edgewise.edge.agent.presence import STARTED, Presence
from edgewise.edge.agent.reserve import Reserve
from edgewise.edge.agent.schema import open_agent
from edgewise.edge.agent.uplink.budget import Budget
from edgewise.edge.agent.uplink.rows import Rows
from edgewise.edge.agent.uplink.sender import Sender
from edgewise.edge.broker import BrokerLink
from edgewise.edge.hardware.machine import Machine
from edgewise.wire import topics
from edgewise.wire.envelope import decode
from edgewise.wire.fleet import Birth, Event, HostLive, Severity, Sync

log = get_logger(__name__)

_WATCH_S = 10.0
_TIDY_S = 600.0


class Agent:
    """See docs/agent.md. The link is shared with other parts: who made it ends it, after this.

    Raises:
        StorageError: The machine does not tell its boot id.
    """

    def __init__(self, settings: Settings, deps: ApiDependencies, broker: BrokerLink) -> None:
        self._settings = settings
        self._deps = deps
        self._broker = broker
        self._link = broker.link
        clock = deps.clock
        moments = Moments(clock)
        self._moments = moments
        self._database = open_agent(settings.home / "agent.db")
        self._rows = Rows(self._database, moments, max_bytes=settings.agent.outbox_bytes)
        self._budget = Budget(self._database, moments, settings.agent.daily_bytes)
        self._sender = Sender(self._link, self._rows, self._budget, moments, clock)
        self._reserve = Reserve(settings.home / "agent-reserve", self._rows)
        self._inbox = Inbox(self._database, self._rows, moments, self._link.uid)
        self._hardware = Machine(settings.home, clock)
        self._presence = Presence(self._link, birth=self._birth, sync=self._sync, on_born=self._born)
        broker.present(self._presence)
        self._desk = Desk(
            self._link,
            self._inbox,
            self._sender,
            self._operations(),
            moments,
            clock,
            on_full=self._reserve.free,
            on_retained=self._refuse_retained,
        )
        self._host_ep = -1
        self._mail = Mail(
            self._link,
            clock,
            {"cmd": self._desk.command, "ctl": self._desk.control, "des": self._desired, "host": self._host},
        )
        self._tasks: list[asyncio.Task[None]] = []

    def __repr__(self) -> str:
        return f"Agent({self._link.uid}, connected={self._link.connected})"

    @property
    def routers(self) -> Sequence[APIRouter]:
        return ()

    # --- life ------------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._sender.start()
        self._desk.lanes.start()
        self._mail.start()
        self._spawn(self._prepare(), "agent-prepare")
        self._spawn(self._watch(), "agent-watch")
        self._spawn(self._say_drain(), "agent-drain")
        self._link.start()

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._mail.stop()
        await self._desk.stop()
        await self._sender.stop()
        await asyncio.to_thread(self._database.close)

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        self._tasks.append(asyncio.create_task(work, name=name))

    async def _prepare(self) -> None:
        try:
            await self._budget.load()
        except StorageError as error:
            log.warning("budget_not_loaded", reason=error.message)

    async def _say_drain(self) -> None:
        await self._deps.requests.wait_drain()
        try:
            await self._presence.draining("the service finishes what it has begun")
        except EdgewiseError as error:
            log.info("drain_not_told", reason=error.message)

    # --- watching --------------------------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        """Every task has an outermost frame that goes on; one that is dead all the same is noticed here."""
        tidied_at = float("-inf")
        while True:
            try:
                await self._look_after()
                if self._deps.clock.monotonic() - tidied_at >= _TIDY_S:
                    tidied_at = self._deps.clock.monotonic()
                    await self._inbox.prune(self._settings.agent.keep_days * DAY_S, self._settings.agent.outbox_bytes)
            except EdgewiseError as error:
                log.warning("agent_waits", reason=error.message)
            except Exception:  # outermost frame of a task
                log.exception("agent_watch_broke")
            await self._deps.clock.sleep(_WATCH_S)

    async def _look_after(self) -> None:
        if self._link.revive():
            await self.tell_event(
                "link_task_died", "warning", "The task that keeps the link had ended; it was begun again."
            )
        await self._reserve.hold()

    # --- what is told ----------------------------------------------------------------------------------------------------

    async def tell_event(self, kind: str, severity: Severity, message: str, **facts: Any) -> None:
        """Something happened: kept for the fleet, until it has it."""
        event = Event(kind=kind, severity=severity, message=message, facts=facts)
        try:
            await self._rows.add("alert", topics.event(self._link.uid, severity), event)
        except StorageError as error:
            log.warning("event_not_kept", kind=kind, reason=error.message)
            return
        self._sender.wake()

    def _born(self) -> None:
        self._sender.link_up()

    async def _birth(self) -> Birth:
        found = self._link.found
        hardware = await asyncio.to_thread(self._hardware.describe)
        return Birth(
            version=self._deps.version,
            boot=self._moments.boot,
            started=STARTED,
            name=self._settings.agent.name or socket.gethostname(),
            ops=tuple(self._operations()),
            hardware=dict(hardware),
            limits={"outbox_bytes": self._settings.agent.outbox_bytes, "keep_days": self._settings.agent.keep_days},
            broker={} if found is None else {"packet": found.packet, "expiry": found.expiry, "shared": found.shared},
        )

    async def _sync(self) -> Sync:
        return Sync(gens={}, open=tuple((await self._inbox.open())[:1000]), outbox=await self._rows.depths())

    # --- what arrives ----------------------------------------------------------------------------------------------------

    def _operations(self) -> dict[str, Operation]:
        all_of_them = (ping(self._deps.clock), infer(self._deps))
        return {operation.name: operation for operation in all_of_them}

    async def _refuse_retained(self, op: str) -> None:
        message = (
            f"A command '{op}' is retained at the broker and was not done: clear it with an empty retained message."
        )
        await self.tell_event("retained_command", "warning", message, op=op, topic=topics.command(self._link.uid, op))

    async def _host(self, letter: Letter) -> None:
        """The fleet comes or goes. The will of its last session may arrive after it has come again."""
        envelope = decode(letter.payload)
        host = envelope.read(HostLive)
        if host.state == "offline" and envelope.ep < self._host_ep:
            return
        self._host_ep = envelope.ep
        self._sender.host_said(host)

    async def _desired(self, letter: Letter) -> None:
        del letter
