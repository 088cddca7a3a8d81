"""A scripted device of a fleet over a real broker: presence, commands, shadows and an outbox, without an engine behind it.

It keeps what a device keeps on its disk (inbox, outbox, generations) in this object, so `cut` and `start` is a device that lost
its link, and a new object with the same folder one that lost its disk but for the number of its session.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from edgewise.core.errors import LinkLost
from edgewise.wire import topics
from edgewise.wire.envelope import Envelope, Sealer, decode, encode
from edgewise.wire.fleet import (
    ENDED,
    Ack,
    Birth,
    Command,
    CommandState,
    Control,
    Desired,
    Event,
    HostLive,
    Live,
    LogPart,
    ModelState,
    Received,
    Reported,
    Sample,
    Sync,
    Telemetry,
)
from edgewise.wire.mqtt.connection import Broker, Incoming, Will
from edgewise.wire.mqtt.link import Link
from edgewise.wire.mqtt.session import SessionCounter

Act = Callable[["FleetDevice", str, Command], Awaitable[None]]
"""What it does with a command: (device, the command's id, the command)."""


async def succeed(device: FleetDevice, id: str, command: Command) -> None:
    """Accept, run, succeed."""
    await device.ack(id, "accepted")
    await device.ack(id, "running", step="working", percent=50)
    await device.ack(id, "succeeded", result={"op": command.op})


async def ignore(device: FleetDevice, id: str, command: Command) -> None:
    """As if the command had never come."""


async def accept_only(device: FleetDevice, id: str, command: Command) -> None:
    """Accept, and never come to an end."""
    await device.ack(id, "accepted")


class FleetDevice:
    """Args:
    acts: What it does with commands, by op; others succeed.
    apply: Whether a desired document is put in force, or refused with the reason that this returns.
    """

    def __init__(
        self,
        uid: str,
        port: int,
        folder: Path,
        *,
        acts: dict[str, Act] | None = None,
        apply: Callable[[str, dict[str, Any]], str | None] = lambda *_: None,
        version: str = "1.0.0",
        models: tuple[ModelState, ...] = (),
        host: str = "127.0.0.1",
        password: str | None = None,
    ) -> None:
        self.uid = uid
        self.acts = acts or {}
        self.apply = apply
        self.version, self.models = version, models
        self.boot = "boot-1"
        self.documents: dict[str, Desired] = {}
        self.seen: list[tuple[str, int]] = []
        self.commands: list[tuple[str, Command]] = []
        """Every command that arrived, repeats included."""
        self.worked: list[str] = []
        """Ids of the commands that it began to work on."""
        self.controls: list[tuple[str, Control]] = []
        self.open: dict[str, str] = {}
        self.last: dict[str, Ack] = {}
        self.outbox: dict[str, tuple[str, Envelope]] = {}
        self.hosts: list[str] = []
        self.retained: list[str] = []
        """Topics of commands that arrived as retained; there must be none."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._broker = Broker(host=host, port=port, uid=uid, password=password)
        self._sessions = SessionCounter(folder / f"{uid}-session")
        self.link = self._make_link()

    def _make_link(self) -> Link:
        link = Link(self._broker, self._sessions, will=self._will, birth=self._birth)
        link.on(topics.down(self.uid), self._arrived)
        link.on(topics.HOST_LIVE, self._host)
        return link

    # --- life ------------------------------------------------------------------------------------------------------------

    async def start(self) -> FleetDevice:
        self.link.start()
        await self.link.wait_connected(20)
        return self

    async def stop(self, reason: str = "stopped", expected_s: float | None = None) -> None:
        """A clean stop: it says so itself."""
        live = Live(state="offline", reason=reason, expected_s=expected_s)
        await self.link.stop((topics.live(self.uid), encode(self.link.sealer.seal(live))))
        await self._end()

    async def cut(self) -> None:
        """Its link breaks: the broker publishes the will."""
        self.link.connection.end("cut")
        self.link._stopping = True  # no way to lose a link for good is public
        await self.link.stop()
        await self._end()
        self.link = self._make_link()

    async def _end(self) -> None:
        for task in [*self._tasks]:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _will(self, ep: int) -> Will:
        return Will(topics.live(self.uid), encode(Sealer(ep).seal(Live(state="offline", reason="will"))), retain=True)

    async def _birth(self) -> None:
        await self.say(topics.live(self.uid), Live(state="online"), retain=True)
        birth = Birth(version=self.version, boot=self.boot, started="s", name=self.uid, models=self.models)
        await self.say(topics.birth(self.uid), birth, retain=True)
        await self.sync()
        await self._flush()

    async def _flush(self) -> None:
        """All that is not acknowledged, again."""
        with contextlib.suppress(LinkLost):
            for topic, envelope in [*self.outbox.values()]:
                await self.link.send(topic, envelope)

    # --- what it says ----------------------------------------------------------------------------------------------------

    async def say(self, topic: str, body: BaseModel, *, retain: bool = False) -> Envelope:
        envelope = self.link.sealer.seal(body)
        await self.link.send(topic, envelope, retain=retain)
        return envelope

    async def keep(self, topic: str, body: BaseModel) -> Envelope:
        """Send what stays in the outbox until the fleet has it."""
        envelope = self.link.sealer.seal(body)
        self.outbox[envelope.id] = (topic, envelope)
        with contextlib.suppress(LinkLost):  # it goes with the next connect
            await self.link.send(topic, envelope)
        return envelope

    async def sync(self) -> None:
        gens = {shadow: desired.gen for shadow, desired in self.documents.items()}
        waiting = {"result": len(self.outbox)} if self.outbox else {}
        await self.say(topics.sync(self.uid), Sync(gens=gens, open=tuple(self.open), outbox=waiting))  # type: ignore[arg-type]

    async def ack(self, id: str, state: CommandState, **facts: Any) -> None:
        ack = Ack(state=state, **facts)
        self.last[id] = ack
        if state in ENDED:
            self.open.pop(id, None)
        await self.keep(topics.ack(self.uid, id), ack)

    async def piece(self, id: str, offset: int, text: str) -> None:
        """A piece of a streamed answer."""
        await self.say(topics.ack(self.uid, id), Ack(state="running", offset=offset, text=text))

    async def telemetry(self, values: dict[str, float], *, group: str = "engine", age_ms: int = 0) -> Envelope:
        body = Telemetry(group=group, age_ms=age_ms, samples=(Sample(values=values),))
        return await self.keep(topics.telemetry(self.uid, group), body)

    async def event(self, kind: str, message: str = "", **facts: Any) -> Envelope:
        body = Event(kind=kind, severity="warning", message=message, facts=facts)
        return await self.keep(topics.event(self.uid, "warning"), body)

    async def log_part(self, id: str, index: int, lines: tuple[str, ...], *, last: bool = False) -> None:
        await self.keep(topics.log_part(self.uid, id), LogPart(index=index, lines=lines, last=last))

    # --- what it hears ---------------------------------------------------------------------------------------------------

    def _host(self, incoming: Incoming) -> None:
        if incoming.payload:
            self.hosts.append(decode(incoming.payload).read(HostLive).state)
            if self.hosts[-1] == "online" and self.link.connected:
                self._spawn(self._flush())  # what it had may not be on its disk

    def _arrived(self, incoming: Incoming) -> None:
        if not incoming.payload:
            return
        topic, envelope = topics.parse(incoming.topic), decode(incoming.payload)
        kind = topic.rest[0]
        if kind == "cmd":
            if incoming.retain:
                self.retained.append(incoming.topic)
            self._spawn(self._command(envelope.id, envelope.read(Command)))
        elif kind == "ctl" and topic.rest[1] == "outbox":
            for id in envelope.read(Received).ids:
                self.outbox.pop(id, None)
        elif kind == "ctl":
            self.controls.append((topic.rest[1], envelope.read(Control)))
            self._spawn(self._control(topic.rest[1], envelope.read(Control)))
        elif kind == "des":
            self._spawn(self._desired(topic.rest[1], envelope.read(Desired)))

    async def _command(self, id: str, command: Command) -> None:
        self.commands.append((id, command))
        if id in self.last:  # a repeat is answered from what is known
            await self.keep(topics.ack(self.uid, id), self.last[id])
            return
        act = self.acts.get(command.op, succeed)
        if act is not ignore:
            self.worked.append(id)
            self.open[id] = command.op
        await act(self, id, command)

    async def _control(self, id: str, control: Control) -> None:
        if control.do == "cancel" and id in self.open:
            await self.ack(id, "cancelled", reason="asked")

    async def _desired(self, shadow: str, desired: Desired) -> None:
        self.seen.append((shadow, desired.gen))
        known = self.documents.get(shadow)
        if known is not None and desired.gen <= known.gen:
            return
        refusal = self.apply(shadow, desired.document)
        applied = desired.gen if refusal is None else 0 if known is None else known.gen
        self.documents[shadow] = desired
        report = Reported(
            seen=desired.gen,
            applied=applied,
            state="applied" if refusal is None else "refused",
            reason=refusal or "",
            document=desired.document if refusal is None else {},
        )
        await self.keep(topics.reported(self.uid, shadow), report)

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
