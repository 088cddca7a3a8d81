"""A broker, a cloud behind it and a device before it, for tests: all real but the cloud's engine."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from edgewise.api.deps import ApiDependencies
from edgewise.cloud.app import CloudPart
from edgewise.cloud.mqtt_intake import MqttIntake
from edgewise.cloud.tenants import tenant_of_device
from edgewise.core.errors import (
    LinkLost,
)
from edgewise.core.settings_links import IntakeSettings
from edgewise.core.settings_schema import Settings
from edgewise.edge.offload.mqtt import MqttTransport
from edgewise.pipeline.model import Models
from edgewise.security.keys import KeyStore
from edgewise.wire.messages import Final, JobRequest
from edgewise.wire.mqtt.connection import Broker
from edgewise.wire.mqtt.link import Link
from edgewise.wire.mqtt.session import SessionCounter
from edgewise.wire.stream_log import START, Place, StreamHash
from tests.cloud.service import body
from tests.e2e.broker import BrokerProcess
from tests.fakes.engine import FakeEngine
from tests.fakes.serving import fake_model

Result = TypeVar("Result")
LONG = tuple(number % 500 for number in range(300))


class Hasty(random.Random):
    def uniform(self, a: float, b: float) -> float:
        return 0.1


@dataclass
class World:
    """A broker, a cloud behind it, and a device before it."""

    broker: BrokerProcess
    engine: FakeEngine
    intake: MqttIntake
    device: MqttTransport
    link: Link
    cloud_link: Link
    events: list[tuple[str, str]] = field(default_factory=list)


def new_link(broker: BrokerProcess, uid: str, home: Path) -> Link:
    where = Broker(host=broker.host, port=broker.port, uid=uid, password=broker.passwords.get(uid))
    return Link(where, SessionCounter(home / f"{uid}-session"), rng=Hasty())


@asynccontextmanager
async def cloud_behind(
    broker: BrokerProcess, home: Path, engine: FakeEngine, *, uid: str = "edgewise-cloud"
) -> AsyncIterator[tuple[MqttIntake, Link]]:
    settings = Settings(home=home, intake=IntakeSettings(max_blob_bytes=4 * 1024**2))
    with KeyStore(settings.keys_file) as keys:
        deps = ApiDependencies(models=Models([fake_model(engine)]), keys=keys)
        part = CloudPart(settings, deps)
        link = new_link(broker, uid, home)
        intake = MqttIntake(
            part.intake,
            link,
            tenant=lambda uid: tenant_of_device(keys, uid, time.time()),
            emit=deps.events.emit,
            heard_s=0.02,
        )
        keys.create("line-1", device="dev")
        part.start()
        intake.start()
        try:
            await link.wait_connected(30)
            yield intake, link
        finally:
            await intake.stop()
            await part.stop()


def job(key: str = "k", max_tokens: int = 40, **fields: Any) -> JobRequest:
    return JobRequest.model_validate(body(key, max_tokens=max_tokens, **fields))


async def read(device: MqttTransport, key: str, after: Place = START) -> tuple[list[int], Final]:
    tokens: list[int] = []
    async for event in device.events(key, after):
        if isinstance(event, Final):
            return tokens, event
        assert event.offset == after.offset + len(tokens)  # nothing twice, nothing missing
        tokens += event.tokens or ()
    raise AssertionError("a stream ended without its final record")


def sha256(tokens: list[int]) -> str:
    hashed = StreamHash()
    hashed.tokens(tokens)
    return hashed.hexdigest()


async def until(condition: Callable[[], bool], what: str) -> None:
    for _ in range(1500):
        if condition():
            return
        await asyncio.sleep(0.02)
    raise AssertionError(f"did not happen: {what}")


async def persist(work: Callable[[], Awaitable[Result]]) -> Result:
    """Again after each loss, as `JobFollower` does."""
    for _ in range(20):
        with contextlib.suppress(LinkLost):
            return await work()
    raise AssertionError("no progress over 20 losses")
