"""Jobs over MQTT on links that fall silent or flap: a proxy of ours between the device and a real broker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from edgewise.bench.link import Link as Proxy
from edgewise.bench.link import LinkShape
from edgewise.core.errors import LinkLost
from edgewise.edge.offload.mqtt import MqttTransport
from edgewise.wire import topics
from edgewise.wire.messages import Final
from edgewise.wire.mqtt.connection import Broker
from edgewise.wire.mqtt.link import Link, LinkEvent
from edgewise.wire.mqtt.session import SessionCounter
from edgewise.wire.stream_log import START, Place
from tests.cloud.mqtt_world import LONG, cloud_behind, job, persist, sha256
from tests.e2e.broker import BrokerProcess, iotcore_broker, mosquitto_broker
from tests.fakes.engine import FakeEngine
from tests.wire.mqtt.conftest import impatient


@dataclass
class Road:
    """A device whose way to the broker is a proxy."""

    proxy: Proxy
    link: Link
    device: MqttTransport
    engine: FakeEngine
    events: list[LinkEvent]
    held: bool = False


@pytest.fixture(params=["iotcore", "mosquitto"])
def broker(request: pytest.FixtureRequest) -> Iterator[BrokerProcess]:
    with iotcore_broker() if request.param == "iotcore" else mosquitto_broker(users=("dev",)) as started:
        yield started


@pytest.fixture
async def road(broker: BrokerProcess, tmp_path: Path) -> AsyncIterator[Road]:
    engine = FakeEngine(script=lambda request: LONG[len(request.output) :], delay_s=0.01)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(cloud_behind(broker, tmp_path / "cloud", engine))
        proxy = await asyncio.to_thread(stack.enter_context, Proxy(broker.host, broker.port))
        where = Broker(host="127.0.0.1", port=proxy.port, uid="dev", password=broker.passwords.get("dev"))
        events: list[LinkEvent] = []
        link = Link(where, SessionCounter(tmp_path / "session"), on_event=events.append)
        device = MqttTransport(link)
        stack.push_async_callback(device.close)
        yield Road(proxy, link, device, engine, events)


async def test_a_link_that_falls_silent_in_a_stream_is_left_and_the_stream_goes_on_over_the_next(road: Road) -> None:
    await road.device.submit(job(max_tokens=300))
    tokens: list[int] = []

    async def follow() -> None:
        async for event in road.device.events("k", Place(1, len(tokens)) if tokens else START):
            if isinstance(event, Final):
                return
            tokens.extend(event.tokens or ())
            if len(tokens) >= 50 and not road.held:
                road.held = True
                impatient(road.link, 1.0)
                road.proxy.hold()

    with pytest.raises(LinkLost):
        await follow()
    assert 50 <= len(tokens) < 300
    assert "the broker has said nothing for" in next(event.message for event in road.events if event.kind == "down")
    road.proxy.restore()
    await persist(follow)
    assert tokens == [*LONG]
    assert len(road.engine.requests) == 1


async def test_a_link_that_is_slow_is_not_silent(road: Road) -> None:
    await road.device.info()
    road.proxy.reshape(LinkShape(bits_per_s=1e6))
    impatient(road.link, 0.5)
    await road.link.publish(topics.job_control("dev", "x"), bytes(400_000))  # three seconds of it; nothing comes back
    assert road.link.connects == 1


async def test_a_stream_goes_on_over_a_link_that_flaps_faster_than_a_second(road: Road) -> None:
    """It breaks half a second after each connection, and some of them carry nothing."""
    await road.device.info()
    flapping = asyncio.create_task(_flap(road.proxy))
    await persist(lambda: road.device.submit(job(max_tokens=100)))  # its engine takes a second
    tokens: list[int] = []
    final: Final | None = None
    losses = 0
    while final is None:
        try:
            async for event in road.device.events("k", Place(1, len(tokens)) if tokens else START):
                if isinstance(event, Final):
                    final = event
                    break
                assert event.offset == len(tokens)
                tokens += event.tokens or ()
                await asyncio.sleep(0.01)  # a reader for whom the stream takes many flaps
        except LinkLost:
            losses += 1
            assert losses < 200, len(tokens)
    flapping.cancel()
    await asyncio.gather(flapping, return_exceptions=True)
    assert tokens == [*LONG[:100]]
    assert final.sha256 == sha256(tokens)
    assert road.link.connects > 1
    assert len(road.engine.requests) == 1


async def _flap(proxy: Proxy) -> None:
    while True:
        await asyncio.sleep(0.5)
        proxy.reset()
