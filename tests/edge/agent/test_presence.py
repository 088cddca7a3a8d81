"""That the device says when it comes and goes, on real brokers."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from edgewise.edge.agent.moments import read_boot_id
from edgewise.wire.fleet import Birth, Event, Live, Sync
from tests.e2e.broker import BrokerProcess
from tests.edge.agent.device import Device, DeviceFactory
from tests.edge.agent.fleet import FleetDouble, until


def lives(fleet: FleetDouble) -> list[tuple[str, str, int]]:
    return [(live.state, live.reason, envelope.ep) for envelope in fleet.of("live") for live in [envelope.read(Live)]]


async def test_it_says_live_birth_and_sync_after_each_connect(fleet: FleetDouble, device: Device) -> None:
    await until(lambda: fleet.of("sync"), "a sync")
    assert [kind for kind, _ in fleet.said if kind in ("live", "birth", "sync")][:3] == ["live", "birth", "sync"]
    birth = fleet.of("birth")[0].read(Birth)
    assert birth.boot == read_boot_id()
    assert {"ping", "infer", "restart", "model.pull", "software"} <= set(birth.ops)
    assert birth.hardware["cores"] >= 1
    sync = fleet.of("sync")[0].read(Sync)
    assert (sync.gens, sync.open, set(sync.outbox) - {"telemetry"}) == ({}, (), set())
    device.cut()
    await until(lambda: len(fleet.of("sync")) >= 2, "a sync after the cut")
    first, second = fleet.of("sync")[0].ep, fleet.of("sync")[-1].ep
    assert 0 < first < second  # each session has a number of its own, from the disk


async def test_what_is_said_is_there_for_those_who_come_later(
    broker: BrokerProcess, device: Device, uid: str, tmp_path: Path
) -> None:
    """F29: both the last will and the birth are retained."""
    await until(lambda: device.agent._presence._state == "online" and device.link.connects)
    (tmp_path / "late").mkdir()
    async with FleetDouble(broker, uid, tmp_path / "late") as late:
        await until(lambda: late.of("live") and late.of("birth"), "what was retained")
        await device.crash()
        await until(lambda: lives(late)[-1][0] == "offline", "the will")
    (tmp_path / "later").mkdir()
    async with FleetDouble(broker, uid, tmp_path / "later") as later:
        await until(lambda: later.of("live"), "the will, retained")
        assert lives(later)[-1][:2] == ("offline", "the connection was lost")


async def test_the_will_carries_the_number_of_its_session(fleet: FleetDouble, device: Device) -> None:
    """A will that arrives late, behind the next "online", can be told from one that counts."""
    await until(lambda: fleet.of("sync"))
    device.cut()
    await until(lambda: len(fleet.of("sync")) >= 2)
    said = lives(fleet)
    onlines = [ep for state, _, ep in said if state == "online"]
    assert onlines == sorted(set(onlines))
    assert all(ep < onlines[-1] for state, _, ep in said if state == "offline")


async def test_a_clean_stop_says_why_and_a_drain_is_seen(fleet: FleetDouble, device: Device) -> None:
    await until(lambda: fleet.of("sync"))
    device.deps.requests.begin_drain()
    await until(lambda: "draining" in [state for state, _, _ in lives(fleet)], "draining")
    await device.stop()
    await until(lambda: lives(fleet)[-1][:2] == ("offline", "stopped"), "the goodbye")


async def test_a_restart_says_for_how_long(fleet: FleetDouble, device: Device) -> None:
    await until(lambda: fleet.of("sync"))
    await fleet.command("restart", reason="maintenance", expected_s=30.0)
    await until(lambda: device.ended, "the end of the service")
    assert device.ended == [75]
    await device.stop()
    await until(lambda: lives(fleet)[-1][0] == "offline")
    told = fleet.of("live")[-1].read(Live)
    assert (told.reason, told.expected_s) == ("maintenance", 30.0)


async def test_a_fleet_that_comes_back_is_told_again_what_it_may_have_missed(
    fleet: FleetDouble, device: Device
) -> None:
    """It keeps no session at its broker: what was said while it was away is lost. Two that come one after the other, as when the
    will of the first was lost with its broker, are told twice."""
    try:
        await until(lambda: fleet.of("sync"), "the sync of the connect")
        fleet.receive = False
        await device.agent._uplink.event("test", "info", "a row that waits")
        await until(lambda: fleet.of("evt"))
        for _ in range(2):
            fleet.said.clear()
            await fleet.host("online")
            await until(lambda: fleet.of("sync") and fleet.reported("policy"), "sync and reports")
            await until(lambda: fleet.of("evt"), "what waits")
        assert device.link.connects == 1
    finally:
        await fleet.forget_host()


async def test_a_dead_link_task_is_noticed_and_begun_again(
    monkeypatch: pytest.MonkeyPatch, broker: BrokerProcess, fleet: FleetDouble, new_device: DeviceFactory
) -> None:
    monkeypatch.setattr("edgewise.edge.agent.part._WATCH_S", 0.05)
    device = await new_device(broker)
    await until(lambda: fleet.of("sync"))
    task = device.link._task
    assert task is not None
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await until(lambda: len(fleet.of("sync")) >= 2, "a sync after the revival")
    await until(lambda: [one.read(Event).kind for one in fleet.each("evt")] == ["link_task_died"], "an event")


async def test_without_a_broker_it_waits_and_stops_at_once(
    new_device: DeviceFactory, one_broker: BrokerProcess
) -> None:
    """Its start waits for nothing; what happens meanwhile is kept."""
    nowhere = BrokerProcess("nowhere", [], one_broker.folder, "127.0.0.1", 1)
    device = await new_device(nowhere, connected=False)
    await device.agent._uplink.event("test", "info", "nobody hears it")
    assert await device.agent._uplink.rows.depths() == {"alert": 1}
    await device.stop()


async def test_events_of_the_service_reach_the_fleet(fleet: FleetDouble, device: Device) -> None:
    """F30: also that another client has this device's name, once there is a connection again."""
    await until(lambda: fleet.of("sync"))
    device.deps.events.emit("engine_crashed", "The engine was ended by signal 9.", model="tiny")
    device.deps.events.emit("draining", "nobody needs to hear of this")
    device.deps.events.emit("mqtt_clone", "Another client uses the name.")
    await until(lambda: len(fleet.each("evt")) == 2)
    told = {topic: one.read(Event) for topic, one in fleet.said if topic.startswith("evt/")}
    assert {topic: event.kind for topic, event in told.items()} == {
        "evt/warning": "engine_crashed",
        "evt/critical": "mqtt_clone",
    }
    assert told["evt/warning"].facts == {"model": "tiny"}


async def test_the_birth_says_how_long_the_certificate_lasts(
    one_broker: BrokerProcess, new_device: DeviceFactory, uid: str, tmp_path: Path
) -> None:
    """By a moment that is known to have passed, not by a clock that may be off by years."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, uid)])
    floor = datetime(2027, 3, 1, tzinfo=timezone.utc)
    builder = x509.CertificateBuilder(name, name, key.public_key(), 1, floor - timedelta(1), floor + timedelta(30))
    certificate = builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    (tmp_path / "device.pem").write_bytes(certificate)
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "time-floor").write_text(f"{floor.timestamp():.0f}\n")
    device = await new_device(one_broker)
    device.agent._facts._settings = device.loaded.settings.model_copy(
        update={"mqtt": device.loaded.settings.mqtt.model_copy(update={"cert_file": tmp_path / "device.pem"})}
    )
    assert (await device.agent._facts.birth()).certificate_days == 30.0


async def test_what_cannot_be_read_does_not_cost_the_link(
    one_broker: BrokerProcess, new_device: DeviceFactory, uid: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "fleet-settings.json").write_text("{")
    async with FleetDouble(one_broker, uid, tmp_path) as fleet:
        device = await new_device(
            one_broker, prepare=lambda made: monkeypatch.setattr(made.agent._presence, "_make_sync", broken)
        )
        assert (await fleet.does("ping")).state == "succeeded"
        assert device.link.connects == 1


async def broken() -> Sync:
    raise RuntimeError("as ordered")
