"""A simulated device keeps the rules of an agent: what a fleet has missed is said again, as it is now, and never all at once."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from edgewise.bench.fleet.device import WINDOW, SimulatedDevice
from edgewise.wire.envelope import new_ulid
from edgewise.wire.fleet import Reported
from edgewise.wire.mqtt.connection import Broker
from tests.e2e.broker import BrokerProcess, iotcore_broker
from tests.edge.agent.fleet import FleetDouble, until


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    with iotcore_broker() as started:
        yield started


@pytest.fixture
async def device(broker: BrokerProcess) -> AsyncIterator[SimulatedDevice]:
    """It takes samples only when it is told to; not started."""
    made = SimulatedDevice(Broker(host=broker.host, port=broker.port, uid=f"sim-{uuid.uuid4().hex[:8]}"), period_s=0)
    yield made
    await made.stop()


@pytest.fixture
async def fleet(broker: BrokerProcess, device: SimulatedDevice, tmp_path: Path) -> AsyncIterator[FleetDouble]:
    async with FleetDouble(broker, device.uid, tmp_path) as double:
        device.start()
        await until(lambda: double.of("sync"), "the device is there")
        yield double


async def test_a_fleet_that_comes_back_hears_what_is_in_force_now(device: SimulatedDevice, fleet: FleetDouble) -> None:
    """Reports are no rows of an outbox: an old one that was sent again, in a newer message, would be believed."""
    fleet.receive = False
    await fleet.desire("config", 1, {"a": 1})
    await fleet.desire("config", 2, {"a": 2})
    await until(lambda: (one := fleet.reported("config")) is not None and one.applied == 2, "the second document")
    fleet.said.clear()
    await fleet.host("online")
    await until(lambda: fleet.of("sync") and fleet.reported("config"), "sync and report")
    device.cut()
    await until(lambda: device.tally.connects == 2 and len(fleet.of("sync")) == 2, "the next connect")
    await until(lambda: len(fleet.of("rep/config")) >= 2, "a report at the connect")
    assert {one.read(Reported).applied for one in fleet.of("rep/config")} == {2}


async def test_only_a_window_is_on_its_way(device: SimulatedDevice, fleet: FleetDouble) -> None:
    """A fleet that is slow is not sent ever more of what it has not acknowledged."""
    fleet.receive = False
    for _ in range(3 * WINDOW):
        device.sample()
    await until(lambda: len(fleet.of("tel")) >= WINDOW)
    await fleet.host("online")
    await until(lambda: len(fleet.of("tel")) >= 2 * WINDOW, "it is sent again")
    assert len(fleet.each("tel")) == WINDOW
    fleet.receive = True
    await fleet.acknowledge(*(one.id for one in fleet.each("tel")))
    await until(lambda: device.waiting == 0, "the others have their turn")
    assert len(fleet.each("tel")) == device.tally.samples == 3 * WINDOW


async def test_a_command_that_comes_again_is_done_once_and_answered_once_at_a_time(
    device: SimulatedDevice, fleet: FleetDouble
) -> None:
    fleet.receive = False
    id = await fleet.command("ping")
    await until(lambda: fleet.ends(id), "its end")
    waiting = device.waiting
    for _ in range(3):
        await fleet.command("ping", id=id)
    await fleet.command("ping", id=(behind := new_ulid()))
    await until(lambda: fleet.ends(behind), "one behind it")
    assert device.waiting == waiting + 2  # accepted and succeeded of the one behind
    await fleet.acknowledge(*(one.id for one in fleet.each("ack")))
    await until(lambda: device.waiting == 0)
    fleet.said.clear()
    await fleet.command("ping", id=id)
    await until(lambda: fleet.ends(id), "its end again")
    assert device.tally.effects == {id: 1, behind: 1}
