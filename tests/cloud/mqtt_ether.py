"""Test doubles for streams over MQTT without sockets and disk: a broker that loses, repeats and reorders, links to it, and a job
table in memory. Transport and intake on both sides are the real ones."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from edgewise.cloud.jobs.records import Job
from edgewise.cloud.mqtt_intake import MqttIntake
from edgewise.core.errors import LinkLost, NotFound
from edgewise.core.priority import Priority
from edgewise.edge.offload.mqtt import MqttTransport
from edgewise.wire.envelope import Envelope, Sealer, encode
from edgewise.wire.messages import Accepted, Chunk, CloudInfo, Final, GenerateWork, JobControl, JobRequest
from edgewise.wire.mqtt.connection import Connection, Ended, Incoming
from edgewise.wire.mqtt.link import Handed, Handler, Link, matches
from edgewise.wire.stream_log import START, Place

Result = TypeVar("Result")
_APART_S = 1e-7  # timers of one moment go off in any order


@dataclass
class Ether:
    """What lies between links.

    Attributes:
        lose: Whether a message is lost, by its topic and number.
        latency_s: Seconds that each message takes.
        repeat: Share of messages that arrive twice.
        jitter_s: Messages take up to so much longer, and overtake each other.
    """

    lose: Callable[[str, int], bool] = lambda topic, number: False
    repeat: float = 0.0
    latency_s: float = 0.01
    jitter_s: float = 0.0
    rng: random.Random = field(default_factory=lambda: random.Random(0))
    links: list[EtherLink] = field(default_factory=list)
    carried: list[str] = field(default_factory=list)

    def carry(self, topic: str, payload: bytes) -> None:
        number = len(self.carried)
        self.carried.append(topic)
        if self.lose(topic, number):
            return
        for _ in range(2 if self.rng.random() < self.repeat else 1):
            delay = self.latency_s + number * _APART_S + self.rng.random() * self.jitter_s
            asyncio.get_running_loop().call_later(delay, self._arrive, Incoming(topic, payload, False))

    def _arrive(self, incoming: Incoming) -> None:
        for link in self.links:
            if not link.connection_ended.done():
                link.arrived(incoming)


class EtherLink:
    """A double of `wire.mqtt.link.Link`; the ether has whatever it is handed."""

    def __init__(self, ether: Ether, uid: str) -> None:
        self.uid = uid
        self.sealer = Sealer(1)
        self.connection_ended: asyncio.Future[Ended] = asyncio.get_running_loop().create_future()
        self._ether = ether
        self._handlers: list[tuple[str, Handler]] = []
        ether.links.append(self)

    def on(self, filter: str, handler: Handler) -> None:
        self._handlers.append((filter, handler))

    def arrived(self, incoming: Incoming) -> None:
        for filter, handler in self._handlers:
            if matches(filter, incoming.topic):
                handler(incoming)

    def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def wait_connected(self, seconds: float) -> None: ...

    @property
    def connection(self) -> Connection:
        @dataclass
        class Open:
            ended: asyncio.Future[Ended]

        return cast(Connection, Open(self.connection_ended))

    def cut(self) -> None:
        """The connection breaks; the next one stands at once."""
        self.connection_ended.set_result(Ended("cut"))
        self.connection_ended = asyncio.get_running_loop().create_future()
        self.sealer = Sealer(self.sealer.ep + 1)

    async def hand(self, topic: str, envelope: Envelope, *, binary: bool = False, retain: bool = False) -> Handed:
        del retain
        payload = encode(envelope, binary=binary)
        self._ether.carry(topic, payload)
        taken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        taken.set_result(None)
        return Handed(len(payload), taken)

    async def send(self, topic: str, envelope: Envelope, *, binary: bool = False, retain: bool = False) -> int:
        return (await self.hand(topic, envelope, binary=binary, retain=retain)).size


@dataclass
class MemoryDesk:
    """Implements `mqtt_intake.Desk` for one job, whose engine makes a token every `pace_s` seconds."""

    tokens: int = 100
    pace_s: float = 0.0
    job: Job | None = None
    since: float = 0.0
    blobs: Any = None  # none travel here

    async def info(self, tenant: str) -> CloudInfo:
        return CloudInfo(name="memory", tenant=tenant)

    async def submit(self, tenant: str, request: JobRequest) -> Accepted:
        if self.job is None:
            self.since = asyncio.get_running_loop().time()
            self.job = Job(
                id="job", tenant=tenant, device=request.device, key=request.key, model="m", kind="generate", base=0,
                priority=Priority.INTERACTIVE, state="running", first=0, count=0, attempt=1, failures=0, received_at=0,
                finished_at=None, kept=True, final=None,
            )  # fmt: skip
        return Accepted(id=self.job.id)

    async def find(self, tenant: str, device: str, key: str) -> Job:
        if self.job is None:
            raise NotFound("There is no such job.")
        return self.job

    async def check_place(self, tenant: str, id: str, after: Place) -> Job:
        return await self.find(tenant, "", "")

    async def events(self, tenant: str, id: str, after: Place = START) -> AsyncGenerator[Chunk | Final, None]:
        for number in range(after.offset, self.tokens):
            await asyncio.sleep(max(0.0, self.since + number * self.pace_s - asyncio.get_running_loop().time()))
            yield Chunk(attempt=1, offset=number, count=1, tokens=(number,))
        yield Final(state="succeeded", attempt=1, count=self.tokens, finish="length")

    async def control(self, tenant: str, id: str, control: JobControl) -> Job:
        return await self.find(tenant, "", "")


class EtherWorld:
    """A device and a cloud, and what is between them."""

    def __init__(self, ether: Ether, desk: MemoryDesk) -> None:
        self.ether, self.desk = ether, desk
        self.link = EtherLink(ether, "dev")
        self.device = MqttTransport(cast(Link, self.link))
        self._cloud_link = EtherLink(ether, "cloud")
        self.intake = MqttIntake(desk, cast(Link, self._cloud_link), tenant=lambda uid: "t", heard_s=0.0)
        self.losses = 0
        self.lost = asyncio.Event()

    async def __aenter__(self) -> EtherWorld:
        self.intake.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.device.close()
        await self.intake.stop()

    async def persist(self, work: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
        """Again after each loss, as `JobFollower` does."""
        while True:
            try:
                return await work()
            except LinkLost:
                self.losses += 1
                self.lost.set()
                assert self.losses < 100, "no progress"
                await asyncio.sleep(0.1)

    async def read(self, *, reader_s: float = 0.0) -> list[int]:
        """Hand the job over and read its whole stream, `reader_s` for each chunk."""
        tokens: list[int] = []

        async def follow() -> None:
            async for event in self.device.events("k", Place(1, len(tokens)) if tokens else START):
                if isinstance(event, Final):
                    assert event.count == len(tokens)
                    return
                assert event.offset == len(tokens)  # nothing twice, nothing missing
                tokens.extend(event.tokens or ())
                await asyncio.sleep(reader_s)
            raise AssertionError("a stream ended without its final record")

        request = JobRequest(key="k", work=GenerateWork(model="m", prompt=(1,)))
        await self.persist(lambda: self.device.submit(request))
        await self.persist(follow)
        await self.persist(lambda: self.device.control(JobControl(key="k", op="ack", after="1.0", done=True)))
        return tokens
