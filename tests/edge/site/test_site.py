"""What a site hears of a device, and that nothing of it is left at the broker once that is switched off; on real brokers."""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from edgewise.api.deps import ApiDependencies
from edgewise.core.settings import LoadedSettings, load_settings
from edgewise.edge.agent.part import Agent
from edgewise.edge.broker import BrokerLink
from edgewise.edge.governor.governor import Governor
from edgewise.edge.hardware.watch import HardwareWatch
from edgewise.edge.site.left import Left
from edgewise.edge.site.part import Site
from edgewise.edge.site.sensors import SENSORS, level_of
from edgewise.pipeline.model import Models
from edgewise.serving.service import Part
from edgewise.wire.mqtt.connection import Broker, Incoming
from edgewise.wire.mqtt.link import Link
from edgewise.wire.mqtt.session import SessionCounter
from tests.e2e.broker import BrokerProcess, iotcore_broker, mosquitto_broker
from tests.edge.agent.fleet import until
from tests.fakes.hardware.scripted import ScriptedHardware
from tests.fakes.serving import fake_model

UID = "press-3"


@pytest.fixture(scope="module", params=["iotcore", "mosquitto"])
def broker(request: pytest.FixtureRequest) -> Iterator[BrokerProcess]:
    with iotcore_broker() if request.param == "iotcore" else mosquitto_broker() as started:
        yield started


class Device:
    """The parts of a device that a site hears of; its engine is a double, its hardware follows a script."""

    def __init__(self, broker: BrokerProcess, home: Path, **agent: Any) -> None:
        self.settings = self._load(broker, home, agent).settings
        self.hardware = ScriptedHardware(temperature_c=61.25, power_w=33.0)
        self.deps = ApiDependencies(models=Models([fake_model()]), version="1.2.3")
        self.watch = HardwareWatch(lambda: self.hardware, self.deps.clock)
        self.broker = BrokerLink(self.settings, self.deps)
        governor = Governor(self.settings.agent, self.deps, self.watch)
        self.parts: list[Part] = [self.watch, governor, self.broker]
        self.parts.append(Site(self.settings, self.deps, self.broker, self.watch, governor))
        if self.settings.agent.enabled:
            self.parts.append(Agent(self._load(broker, home, agent), self.deps, self.broker, self.watch))

    @staticmethod
    def _load(broker: BrokerProcess, home: Path, agent: dict[str, Any]) -> LoadedSettings:
        home.mkdir(exist_ok=True)
        told = {"telemetry_s": 0.1} | agent
        overrides = {"home": home, "mqtt.host": broker.host, "mqtt.port": broker.port, "mqtt.uid": UID}
        overrides |= {f"agent.{name}": value for name, value in told.items()}
        if UID in broker.passwords:
            (home / "password").write_text(broker.passwords[UID])
            overrides["mqtt.password_file"] = home / "password"
        return load_settings(overrides=overrides, environ={}, default_file=home / "none.toml")

    async def __aenter__(self) -> Device:
        for part in self.parts:
            part.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        for part in reversed(self.parts):
            await part.stop()
        self.deps.state.close()

    @property
    def told(self) -> set[str]:
        return {event.kind for event in self.deps.events.since()}


class Listener:
    """Someone at the site. `retained` is what the broker holds, as far as it has told; an empty message takes it away."""

    def __init__(self, broker: BrokerProcess, folder: Path) -> None:
        uid = f"site-{uuid.uuid4().hex[:8]}"
        self.retained: dict[str, str] = {}
        self.link = Link(
            Broker(host=broker.host, port=broker.port, uid=uid), SessionCounter(folder / uid), rng=random.Random(1)
        )
        for filter in ("edgewise/#", "homeassistant/#"):
            self.link.on(filter, self._arrived)

    def _arrived(self, incoming: Incoming) -> None:
        if incoming.payload:
            self.retained[incoming.topic] = incoming.payload.decode()
        else:
            self.retained.pop(incoming.topic, None)

    async def settle(self) -> None:
        """Returns when the broker has told all that it held when this was called."""
        marker = f"edgewise/{self.link.uid}/marker"
        await self.link.publish(marker, b"here")
        await until(lambda: self.retained.pop(marker, None))

    def value(self, key: str, level: str = UID) -> str | None:
        return self.retained.get(f"edgewise/{level}/{key}")


@asynccontextmanager
async def listening(broker: BrokerProcess, folder: Path) -> AsyncIterator[Listener]:
    listener = Listener(broker, folder)
    listener.link.start()
    await listener.link.wait_connected(60)
    yield listener
    await listener.link.stop()


async def test_values_are_told_and_are_taken_back(broker: BrokerProcess, tmp_path: Path) -> None:
    async with listening(broker, tmp_path) as site:
        async with Device(broker, tmp_path / "home", site_topics=True) as device:
            await until(lambda: site.value("tokens_per_s") is not None)
            assert (site.value("state"), site.value("temperature"), site.value("power")) == ("online", "61.25", "33.0")
            assert json.loads(site.value("models") or "") == {"count": 1, "loaded": ["tiny"]}
            assert site.value("last_error") is None
            device.hardware.set(temperature_c=90.0)
            device.deps.events.emit("engine_crashed", "It was killed.")
            await until(lambda: site.value("governor") == "critical")
            told = {"kind": "engine_crashed", "message": "It was killed."}
            await until(lambda: json.loads(site.value("last_error") or "null") == told)
        await until(lambda: site.value("state") == "offline")
        assert not [topic for topic in site.retained if topic.startswith("homeassistant")]
        async with Device(broker, tmp_path / "home") as device:
            await until(lambda: not site.retained)
            await until(lambda: "site_topics_removed" in device.told)
        assert not (tmp_path / "home" / "site-topics.json").exists()
    async with listening(broker, tmp_path) as later:
        await later.settle()
        assert later.retained == {}


async def test_home_assistant_finds_each_value_and_forgets_it(broker: BrokerProcess, tmp_path: Path) -> None:
    async with listening(broker, tmp_path) as site:
        async with Device(broker, tmp_path / "home", home_assistant=True, name="Press 3 / left"):
            await until(lambda: site.value("temperature", "Press-3-left") is not None)
            configs = {
                topic: json.loads(text) for topic, text in site.retained.items() if topic.startswith("homeassistant/")
            }
            assert set(configs) == {f"homeassistant/sensor/press-3/{one.key}/config" for one in SENSORS}
            assert len({one["unique_id"] for one in configs.values()}) == len(SENSORS)
            temperature = configs["homeassistant/sensor/press-3/temperature/config"]
            assert temperature["state_topic"] == "edgewise/Press-3-left/temperature"
            assert (temperature["unit_of_measurement"], temperature["device_class"]) == ("\u00b0C", "temperature")
            assert temperature["device"]["name"] == "Press 3 / left"
            assert temperature["availability_topic"] == f"f/1/d/{UID}/up/live"
        async with Device(broker, tmp_path / "home", site_topics=True):  # another name now, and no discovery
            await until(lambda: site.value("temperature") is not None)
            await until(lambda: all(topic.startswith(f"edgewise/{UID}/") for topic in site.retained))
        async with Device(broker, tmp_path / "home", enabled=False):
            await until(lambda: not site.retained)


async def test_of_a_device_that_died_no_value_is_left(broker: BrokerProcess, tmp_path: Path) -> None:
    async with Device(broker, tmp_path / "home", site_topics=True, enabled=False) as device:
        async with listening(broker, tmp_path) as site:
            await until(lambda: site.value("temperature") is not None)
        async with listening(broker, tmp_path) as later:
            await later.settle()
            assert later.value("temperature") is not None
        site_part = device.parts[-1]
        assert isinstance(site_part, Site)
        site_part._announced = 0  # so that it says no goodbye
        await site_part.stop()

        async def gone() -> bool:
            async with listening(broker, tmp_path) as later:
                await later.settle()
                return not later.retained

        while not await gone():  # bounded by the test's own time limit
            pass


async def test_a_broker_that_forbids_it_is_told_of_once_and_costs_nothing_else(tmp_path: Path) -> None:
    with mosquitto_broker(users=(UID,)) as strict:  # our access list, which has nothing of sites
        async with Device(strict, tmp_path / "home", home_assistant=True) as device:
            await until(lambda: "site_not_permitted" in device.told)
            await until(lambda: device.broker.link.connects == 1 and device.broker.link.connected)
            turns = device.hardware.asked
            await until(lambda: device.hardware.asked > turns + 1)
            assert [event.kind for event in device.deps.events.since()].count("site_not_permitted") == 1


def test_a_list_that_is_damaged_names_nothing(tmp_path: Path) -> None:
    left = Left(tmp_path / "site-topics.json")
    assert left.topics() == frozenset()
    left.write({"a", "b"})
    assert left.topics() == {"a", "b"}
    for damaged in ("{", '"a"', "[1, null]"):
        (tmp_path / "site-topics.json").write_text(damaged)
        assert left.topics() == frozenset()


@pytest.mark.parametrize(
    ("name", "level"), [("", UID), ("Line 3/left", "Line-3-left"), ("#+", UID), ("k\u00fcche", "k-che")]
)
def test_a_name_is_one_level_of_a_topic(name: str, level: str) -> None:
    assert level_of(name, UID) == level
