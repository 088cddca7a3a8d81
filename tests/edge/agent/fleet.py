"""A fleet of one: what a console's side of the protocol does, on a real broker, for tests."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from edgewise.wire import topics
from edgewise.wire.envelope import Envelope, decode, encode, new_ulid
from edgewise.wire.fleet import ENDED, Ack, Command, Control, Desired, HostLive, Received, Reported
from edgewise.wire.mqtt.connection import Broker, Incoming
from edgewise.wire.mqtt.link import Link
from edgewise.wire.mqtt.session import SessionCounter
from tests.e2e.broker import BrokerProcess

ROWS = ("ack", "tel", "evt", "log")


async def until(condition: Callable[[], Any], what: str = "", seconds: float = 60.0) -> Any:
    """What the condition gives once it is true; fails loudly if it does not become so."""
    limit = asyncio.get_running_loop().time() + seconds
    while not (found := condition()):
        assert asyncio.get_running_loop().time() < limit, f"did not happen: {what or condition}"
        await asyncio.sleep(0.02)
    return found


class Hasty(random.Random):
    """Reconnects soon, whatever the limits of a delay are."""

    def uniform(self, a: float, b: float) -> float:
        return min(b, 0.05)


class FleetDouble:
    """Everything that device `uid` said, in order, as (topic behind `up/`, envelope)."""

    def __init__(self, broker: BrokerProcess, uid: str, folder: Path, *, receive: bool = True) -> None:
        self.uid = uid
        self.receive = receive
        self.said: list[tuple[str, Envelope]] = []
        at = Broker(host=broker.host, port=broker.port, uid=f"fleet-{uuid.uuid4().hex[:8]}")
        self.link = Link(at, SessionCounter(folder / "fleet-session"), rng=Hasty())
        self._prefix = f"f/1/d/{uid}/up/"
        self.link.on(f"{self._prefix}#", self._arrived)
        self._tasks: set[asyncio.Task[Any]] = set()

    async def __aenter__(self) -> FleetDouble:
        self.link.start()
        await self.link.wait_connected(30)
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.link.stop()

    def _arrived(self, incoming: Incoming) -> None:
        if not incoming.payload:
            return
        kind, envelope = incoming.topic.removeprefix(self._prefix), decode(incoming.payload)
        self.said.append((kind, envelope))
        if self.receive and kind.split("/")[0] in ROWS:
            self._later(self.acknowledge(envelope.id))

    def _later(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # --- what it says ----------------------------------------------------------------------------------------------------

    async def acknowledge(self, *ids: str) -> None:
        await self.send(topics.received(self.uid), Received(ids=ids))

    async def send(self, topic: str, body: BaseModel, *, retain: bool = False, **envelope: Any) -> str:
        sealed = self.link.sealer.seal(body, **envelope)
        expiry_s = None if sealed.ttl_ms is None else max(1, sealed.ttl_ms // 1000)
        await self.link.publish(topic, encode(sealed), retain=retain, expiry_s=expiry_s)
        return sealed.id

    async def command(
        self, op: str, *, id: str | None = None, retain: bool = False, ttl_ms: int | None = None, **args: Any
    ) -> str:
        timers = {name: args.pop(name) for name in ("total_s", "step_s") if name in args}
        command = Command(op=op, args=args, **timers)
        return await self.send(topics.command(self.uid, op), command, id=id or new_ulid(), retain=retain, ttl_ms=ttl_ms)

    async def control(self, id: str, do: Any, **fields: Any) -> None:
        await self.send(topics.control(self.uid, id), Control(do=do, **fields))

    async def desire(self, shadow: str, gen: int, document: dict[str, Any], *, clear: bool = False) -> None:
        desired = Desired(gen=gen, document=document, clear=clear)
        await self.send(topics.desired(self.uid, shadow), desired, retain=True)

    async def forget_host(self) -> None:
        await self.link.publish(topics.HOST_LIVE, b"", retain=True)

    async def host(self, state: Any) -> None:
        await self.send(topics.HOST_LIVE, HostLive(state=state), retain=True)

    # --- what it heard ---------------------------------------------------------------------------------------------------

    def of(self, kind: str) -> list[Envelope]:
        return [envelope for topic, envelope in self.said if topic == kind or topic.startswith(f"{kind}/")]

    def each(self, kind: str) -> list[Envelope]:
        """As `of`, with what came more than once only once."""
        return [*{envelope.id: envelope for envelope in self.of(kind)}.values()]

    def acks(self, id: str) -> list[Ack]:
        """Changes of a command's state, each once, without the pieces of its answer."""
        found: list[Ack] = []
        for envelope in self.of(f"ack/{id}"):
            ack = envelope.read(Ack)
            if ack.text is None and ack not in found:
                found.append(ack)
        return found

    def ends(self, id: str) -> list[Ack]:
        return [ack for ack in self.acks(id) if ack.state in ENDED]

    def pieces(self, id: str) -> dict[int, str]:
        found = [envelope.read(Ack) for envelope in self.of(f"ack/{id}")]
        return {ack.offset: ack.text for ack in found if ack.text is not None and ack.offset is not None}

    async def end(self, id: str, seconds: float = 60.0) -> Ack:
        ends = await until(lambda: self.ends(id), f"an end of {id}: {self.acks(id)}", seconds)
        result: Ack = ends[0]
        return result

    async def does(self, op: str, **args: Any) -> Ack:
        """Send a command and wait for its end."""
        return await self.end(await self.command(op, **args))

    def reported(self, shadow: str) -> Reported | None:
        found = self.of(f"rep/{shadow}")
        return found[-1].read(Reported) if found else None
