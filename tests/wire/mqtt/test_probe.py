from __future__ import annotations

import pytest

from edgewise.core.errors import ConfigError, LinkLost
from edgewise.wire.mqtt.connection import Broker
from edgewise.wire.mqtt.link import LinkEvent
from edgewise.wire.mqtt.local_broker import MAX_PAYLOAD, LocalBroker
from edgewise.wire.mqtt.probe import BrokerProbe, probe_broker
from scripts.service import free_port
from tests.e2e.broker import BrokerProcess, iotcore_broker, mosquitto_broker
from tests.wire.mqtt.conftest import LinkFactory, until


def at(broker: BrokerProcess, uid: str = "probing") -> Broker:
    return Broker(host=broker.host, port=broker.port, uid=uid, password=broker.passwords.get(uid))


async def test_supported_brokers_can_do_what_is_needed(broker: BrokerProcess) -> None:
    found = await probe_broker(at(broker))
    found.check()
    assert found.expiry
    assert found.weak == (("retain as published",) if broker.name == "iotcore" else ())


async def test_a_device_may_probe_within_our_access_list() -> None:
    with mosquitto_broker(users=("dev-a",)) as broker:
        assert await probe_broker(at(broker, "dev-a")) == BrokerProbe(True, True, True, True)


async def test_a_broker_with_a_low_limit_is_refused_by_reason() -> None:
    with iotcore_broker() as broker:
        path = broker.folder / "broker.toml"
        path.write_text(path.read_text().replace(str(MAX_PAYLOAD), "20480"))
        broker.kill()
        broker.start()
        found = await probe_broker(at(broker))
    assert found.shared
    with pytest.raises(ConfigError, match=r"262144 bytes does not arrive; raise its limit"):
        found.check()


async def test_a_link_finds_out_what_its_broker_can_do(broker: BrokerProcess, new_link: LinkFactory) -> None:
    link = new_link(broker, "a", probe=True)
    link.start()
    await until(lambda: link.found is not None, "the probe")
    assert link.found is not None
    assert link.found.lacking == ()
    assert link.connects == 1


async def test_a_link_does_not_use_an_unfit_broker_and_says_why(new_link: LinkFactory) -> None:
    events: list[LinkEvent] = []
    with iotcore_broker() as broker:
        path = broker.folder / "broker.toml"
        path.write_text(path.read_text().replace(str(MAX_PAYLOAD), "20480"))
        broker.kill()
        broker.start()
        link = new_link(broker, "a", probe=True, on_event=events.append)
        link.start()
        await until(lambda: link.stopped_because is not None, "it gives up")
        with pytest.raises(LinkLost, match="does not arrive; raise its limit"):
            await link.wait_connected(1)
    assert events[-1].kind in ("unfit", "down")
    assert "unfit" in {event.kind for event in events}


async def test_a_broker_without_mqtt_5_is_refused() -> None:
    with iotcore_broker() as broker:
        path = broker.folder / "broker.toml"
        path.write_text(path.read_text().replace("[v5.1", "[v4.1"))
        broker.kill()
        broker.start()
        with pytest.raises(LinkLost):
            await probe_broker(at(broker))


def test_a_broker_without_shared_delivery_is_refused_by_reason() -> None:
    with pytest.raises(ConfigError, match=r"\$share"):
        BrokerProbe(shared=False, packet=True, expiry=True, retain_as_published=True).check()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "localhost.example", ""])
def test_the_local_broker_refuses_every_address_but_loopback(host: str) -> None:
    with pytest.raises(ConfigError, match=r"only 127\.0\.0\.1"):
        LocalBroker(host)


async def test_the_local_broker_runs_and_frees_its_port() -> None:
    port = free_port()
    for _ in range(2):
        broker = LocalBroker(port=port)
        broker.start()
        (await probe_broker(Broker(host="127.0.0.1", port=port, uid="a"))).check()
        taken = LocalBroker(port=port)
        with pytest.raises(ConfigError, match="cannot listen"):
            taken.start()
        broker.stop()
        broker.stop()
