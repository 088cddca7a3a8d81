"""Brokers and devices for the agent's tests: every test that takes `broker` runs on each broker that Edgewise supports."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.broker import BrokerProcess, iotcore_broker, mosquitto_broker
from tests.edge.agent.device import Device, DeviceFactory
from tests.edge.agent.fleet import FleetDouble, until


@pytest.fixture(scope="session", params=["iotcore", "mosquitto"])
def broker(request: pytest.FixtureRequest) -> Iterator[BrokerProcess]:
    with iotcore_broker() if request.param == "iotcore" else mosquitto_broker() as started:
        yield started


@pytest.fixture(scope="session")
def one_broker() -> Iterator[BrokerProcess]:
    """For what does not depend on the broker."""
    with iotcore_broker() as started:
        yield started


@pytest.fixture
def uid() -> str:
    return f"dev-{uuid.uuid4().hex[:8]}"


@pytest.fixture
async def new_device(tmp_path: Path, uid: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[DeviceFactory]:
    """Makes devices with one state directory, one after the other, and waits until they are connected; what still runs is stopped
    at the end."""
    monkeypatch.setattr("edgewise.wire.mqtt.link._FIRST_DELAY_S", 0.05)
    async with AsyncExitStack() as stack:

        async def make(at: BrokerProcess, *, connected: bool = True, prepare: Any = None, **options: Any) -> Device:
            device = Device(at, tmp_path / "home", uid, **options)
            if prepare is not None:
                prepare(device)
            stack.push_async_callback(device.stop)
            device.start()
            if connected:
                await until(lambda: device.link.connected, "the device connects")
            return device

        yield make


@pytest.fixture
async def device(broker: BrokerProcess, new_device: DeviceFactory) -> Device:
    return await new_device(broker)


@pytest.fixture
async def fleet(broker: BrokerProcess, uid: str, tmp_path: Path) -> AsyncIterator[FleetDouble]:
    async with FleetDouble(broker, uid, tmp_path) as double:
        yield double
