"""The broker as `edgewise fleet broker-config` sets it up, on a real mosquitto: who gets in, and what each may do."""

from __future__ import annotations

import asyncio
import re
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from edgewise.cloud.fleet.enrolment.authority import FOLDER, Authority, read_csr
from edgewise.cloud.fleet.enrolment.broker_config import BrokerConfig, _template, shut_out, write_broker_config
from edgewise.core.clock import FakeClock
from edgewise.core.errors import EdgewiseError, LinkLost, NotAuthenticated, NotPermitted
from edgewise.core.tls_time import TimeFloor
from edgewise.wire.mqtt.connection import Broker, Connection, Incoming, Subscription, Will
from scripts.service import free_port
from tests.api.harness import until
from tests.cloud.fleet_trust.test_enrolment import make_csr
from tests.e2e.broker import BrokerProcess, _running, mosquitto_path

YEAR = 365 * 86_400.0


@dataclass
class FleetBroker:
    process: BrokerProcess
    authority: Authority
    config: BrokerConfig
    port: int
    folder: Path

    def fleet(self) -> Broker:
        password = self.config.passwords["fleet"].read_text().strip()
        return Broker(host="127.0.0.1", port=self.process.port, uid="fleet", password=password)

    def device(self, uid: str, authority: Authority | None = None) -> Broker:
        """As a device whose certificate names it `uid`."""
        key = ec.generate_private_key(ec.SECP256R1())
        issued = (authority or self.authority).device_certificate(read_csr(make_csr(key)), uid, 90)
        path = self.folder / f"{uid}-{issued.serial}.pem"
        pem = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        path.write_bytes(pem + issued.pem.encode())
        return Broker(
            host="127.0.0.1",
            port=self.port,
            uid=uid,
            ca_file=self.config.ca,
            cert_file=path,
            key_file=path,
            floor=TimeFloor(trusted=lambda: False),
        )


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[FleetBroker]:
    program = mosquitto_path()
    if program is None:
        pytest.skip("mosquitto is not installed")
    authority = Authority(tmp_path / FOLDER)
    port, local = free_port(), free_port()
    config = write_broker_config(tmp_path / "broker", authority, ["127.0.0.1"], port=port, local_port=local)
    config.conf.write_text(config.conf.read_text() + "user root\n")  # of whoever runs the test
    process = BrokerProcess("mosquitto", [program, "-c", str(config.conf)], tmp_path, "127.0.0.1", local)
    for running in _running(process):
        yield FleetBroker(running, authority, config, port, tmp_path)


@asynccontextmanager
async def connected(broker: Broker, will: Will | None = None) -> AsyncIterator[tuple[Connection, list[Incoming]]]:
    heard: list[Incoming] = []
    connection = Connection(broker, heard.append, will=will)
    await connection.open()
    try:
        yield connection, heard
    finally:
        await connection.close()


async def heard_topics(fleet: Connection, heard: list[Incoming], marker: str) -> list[str]:
    """All topics that came before a message of one's own, which the broker delivers after them."""
    await fleet.publish(marker, b"marker")
    await until(lambda: heard and heard[-1].topic == marker, seconds=60)
    return [message.topic for message in heard[:-1]]


async def refused(connection: Connection, topic: str) -> bool:
    try:
        await connection.publish(topic, b"x")
    except NotPermitted:
        return True
    return False


async def test_a_device_has_its_own_topics_only(broker: FleetBroker) -> None:
    """A message that is not allowed does not arrive, whatever the broker acknowledges; see CASES of such systems."""
    async with connected(broker.fleet()) as (fleet, heard), connected(broker.device("d1")) as (one, _):
        await fleet.subscribe([Subscription("f/1/#")])
        for topic in (
            "f/1/d/d2/up/live",
            "f/1/d/d2/dn/cmd/restart",
            "f/1/d/d1/dn/cmd/restart",
            "f/1/job/any/d2",
            "f/1/host/live",
            "f/1/d/+/up/live",
            "other",
        ):
            with suppress(NotPermitted, LinkLost, ValueError):
                await one.publish(topic, b"x")
        for topic in ("f/1/d/d1/up/live", "f/1/job/any/d1"):
            assert not await refused(one, topic)
        assert set(await heard_topics(fleet, heard, "f/1/marker")) == {"f/1/d/d1/up/live", "f/1/job/any/d1"}


async def test_a_device_hears_nothing_of_others(broker: FleetBroker) -> None:
    async with connected(broker.fleet()) as (fleet, _), connected(broker.device("d1")) as (one, heard):
        await one.subscribe([Subscription("f/1/d/d1/dn/#"), Subscription("f/1/host/live")])
        for topic in ("f/1/#", "#", "f/1/d/+/dn/#", "f/1/d/d2/dn/#", "$SYS/#"):
            with suppress(NotPermitted):  # some brokers grant what they then filter
                await one.subscribe([Subscription(topic)])
        for topic in ("f/1/d/d2/dn/cmd/infer", "f/1/d/d2/up/live", "f/1/d/d1/up/live", "f/1/job/any/d2"):
            await fleet.publish(topic, b"secret", retain=True)
        await fleet.publish("f/1/d/d1/dn/cmd/ping", b"last")
        await until(lambda: heard and heard[-1].payload == b"last", seconds=60)
        assert {message.topic for message in heard} == {"f/1/d/d1/dn/cmd/ping"}  # once for each filter that was granted


async def test_a_device_cannot_take_another_name(broker: FleetBroker) -> None:
    """The certificate alone says who it is: neither client id nor user name of the CONNECT do, so nobody is evicted either."""
    async with connected(broker.fleet()) as (fleet, heard), connected(broker.device("d2")) as (two, _):
        await fleet.subscribe([Subscription("f/1/#")])
        thief = replace(broker.device("d1"), uid="d2", password="x")
        async with connected(thief) as (as_two, _):
            assert not two.ended.done()
            await refused(as_two, "f/1/d/d2/up/live")
            await two.publish("f/1/d/d2/up/birth", b"")
            topics = await heard_topics(fleet, heard, "f/1/marker")
            assert topics == ["f/1/d/d2/up/birth"]
            assert not two.ended.done()


async def test_without_a_certificate_of_this_fleet_nobody_gets_in(broker: FleetBroker, tmp_path: Path) -> None:
    device = broker.device("d1")
    strangers = {
        "no certificate": replace(device, cert_file=None, key_file=None),
        "no certificate, the fleet's password": replace(broker.fleet(), port=broker.port, ca_file=broker.config.ca),
        "a certificate of another authority": broker.device("d1", Authority(tmp_path / "other")),
        "a server's certificate": replace(device, cert_file=_server_pem(broker), key_file=_server_pem(broker)),
        "no TLS": replace(broker.fleet(), port=broker.port),
        "a device at the services' port": replace(device, port=broker.process.port, ca_file=None),
        "a wrong password at the services' port": replace(broker.fleet(), password="wrong"),
        "another name at the services' port": replace(broker.fleet(), uid="d1"),
    }
    for who, stranger in strangers.items():
        with pytest.raises(EdgewiseError) as error:
            async with connected(stranger) as (connection, _):
                await connection.publish("f/1/d/d1/up/live", b"x")
        assert isinstance(error.value, (LinkLost, NotAuthenticated, NotPermitted)), who


async def test_a_device_that_is_shut_out_is_so_at_once(broker: FleetBroker) -> None:
    """Its connection may still stand, since a certificate counts when it connects; nothing passes over it any more."""
    one, two = broker.device("d1"), broker.device("d2")
    async with (
        connected(broker.fleet()) as (fleet, heard),
        connected(one) as (first, first_heard),
        connected(two) as (second, _),
    ):
        await fleet.subscribe([Subscription("f/1/#")])
        await first.subscribe([Subscription("f/1/d/d1/dn/#")])
        assert shut_out(broker.config.conf.parent, ["d1"])
        assert not shut_out(broker.config.conf.parent, ["d1"])
        assert broker.process.process is not None
        broker.process.process.send_signal(signal.SIGHUP)
        deadline = asyncio.get_running_loop().time() + 60
        while not await refused(first, "f/1/d/d1/up/live"):
            assert asyncio.get_running_loop().time() < deadline, "the broker has not read the list"
        heard.clear()
        await refused(first, "f/1/d/d1/up/birth")
        await second.publish("f/1/d/d2/up/birth", b"x")
        await fleet.publish("f/1/d/d1/dn/cmd/infer", b"secret")
        assert "f/1/d/d1/up/birth" not in await heard_topics(fleet, heard, "f/1/marker")
        assert first_heard == []


async def gets_in(broker: Broker) -> bool:
    try:
        async with connected(broker) as (connection, _):
            await connection.publish(f"f/1/d/{broker.uid}/up/live", b"x")
    except EdgewiseError:
        return False
    return True


def _server_pem(broker: FleetBroker) -> Path:
    path = broker.folder / "stolen.pem"
    folder = broker.config.conf.parent
    path.write_text((folder / "server.key").read_text() + (folder / "server.crt").read_text())
    return path


@pytest.mark.parametrize("years", [-5, 5])
async def test_certificates_of_another_time_are_of_use(broker: FleetBroker, years: int, tmp_path: Path) -> None:
    """The broker's certificate lies years away from this machine's clock, which is how a device with a wrong clock sees it."""
    broker.process.stop()
    authority = Authority(tmp_path / FOLDER, clock=FakeClock(FakeClock().time() + years * YEAR))
    write_broker_config(tmp_path / "broker", authority, ["127.0.0.1"], port=broker.port, local_port=broker.process.port)
    conf = broker.config.conf
    conf.write_text(conf.read_text() + "user root\n")
    broker.process.start()
    device = broker.device("d1")
    floor = TimeFloor(trusted=lambda: False)
    floor._value = min(floor.value, FakeClock().time() + years * YEAR - 1)
    async with connected(replace(device, floor=floor)) as (one, _):
        await one.publish("f/1/d/d1/up/live", b"x")


async def test_a_revoked_certificate_is_shut_out_after_a_reload(broker: FleetBroker) -> None:
    one, two = broker.device("d1"), broker.device("d2")
    async with connected(one), connected(two):
        pass
    serial = re.search(r"d1-([0-9a-f]+)\.pem", str(one.cert_file))
    assert serial is not None
    broker.authority.write_crl([(serial[1], FakeClock().time())])
    assert broker.process.process is not None
    broker.process.process.send_signal(signal.SIGHUP)
    deadline = asyncio.get_running_loop().time() + 60
    while await gets_in(one):
        assert asyncio.get_running_loop().time() < deadline, "the broker has not read the list"
    async with connected(two) as (connection, _):
        await connection.publish("f/1/d/d2/up/live", b"x")


def test_the_two_configurations_agree() -> None:
    """Limits and persistence are those of `systemd/mosquitto.conf`, the rules of devices those of `systemd/mosquitto.acl`."""
    root = Path(__file__).resolve().parents[3] / "systemd"

    def lines(text: str, *names: str) -> list[str]:
        return [line for line in text.splitlines() if line.startswith(names)]

    names = ("max_", "memory_limit", "persistence true", "autosave", "persistent_client", "allow_anonymous", "pattern")
    for name in ("mosquitto.conf", "mosquitto.acl"):
        assert lines(_template(name), *names) == lines((root / name).read_text(), *names)


def test_written_again_it_keeps_the_passwords(tmp_path: Path) -> None:
    authority = Authority(tmp_path / FOLDER)
    first = write_broker_config(tmp_path / "broker", authority, ["a.example"])
    before = first.passwords["fleet"].read_text()
    again = write_broker_config(tmp_path / "broker", authority, ["b.example"])
    assert again.passwords["fleet"].read_text() == before
    secret = [
        path for path in (tmp_path / "broker").iterdir() if path.is_file() and path.suffix not in (".crt", ".conf")
    ]
    assert all(path.stat().st_mode & 0o077 == 0 for path in secret)
