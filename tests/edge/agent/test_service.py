"""The agent in a real device service, on real brokers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from scripts.service import DeviceService
from tests.e2e.broker import BrokerProcess, iotcore_broker, mosquitto_broker
from tests.e2e.service import import_tiny, new_home, running
from tests.edge.agent.fleet import FleetDouble

UID = "dev-1"


def environment(broker: BrokerProcess) -> dict[str, str]:
    chosen = {"MQTT__HOST": broker.host, "MQTT__PORT": str(broker.port), "MQTT__UID": UID, "ENGINE__THREADS": "1"}
    return {f"EDGEWISE_{name}": value for name, value in chosen.items()}


@pytest.fixture(scope="module", params=["iotcore", "mosquitto"])
def broker(request: pytest.FixtureRequest) -> Iterator[BrokerProcess]:
    with iotcore_broker() if request.param == "iotcore" else mosquitto_broker() as started:
        yield started


@pytest.fixture(scope="module")
def service(broker: BrokerProcess) -> Iterator[DeviceService]:
    with ExitStack() as stack:
        home = stack.enter_context(new_home(starter=False))
        import_tiny(home)
        yield stack.enter_context(running(model="tiny", home=home, environment=environment(broker)))


@pytest.fixture
async def fleet(broker: BrokerProcess, service: DeviceService, tmp_path: Path) -> AsyncIterator[FleetDouble]:
    async with FleetDouble(broker, UID, tmp_path) as double:
        yield double


async def test_it_answers_ping_and_infer(fleet: FleetDouble) -> None:
    pong = await fleet.does("ping")
    assert pong.state == "succeeded"
    assert pong.result is not None
    assert pong.result["uptime_s"] > 0
    id = await fleet.command("infer", prompt="hello", max_tokens=8, ignore_eos=True)
    end = await fleet.end(id)
    assert (end.state, end.code) == ("succeeded", "")
    assert end.result is not None
    pieces = fleet.pieces(id)
    assert "".join(pieces[offset] for offset in sorted(pieces)) == end.result["choices"][0]["text"]
    assert end.result["usage"]["completion_tokens"] == 8
    assert end.result["edgewise"]["stages"]
    assert [ack.state for ack in fleet.acks(id)] == ["accepted", "running", "succeeded"]
