"""Results over a real broker: brought until their receiver has them, over the same link as work for the cloud."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from edgewise.api.app import create_app
from edgewise.api.deps import ApiDependencies
from edgewise.core.settings import load_settings
from edgewise.edge.app import device_parts
from edgewise.edge.broker import BrokerLink
from edgewise.pipeline.model import Models
from edgewise.wire import topics
from edgewise.wire.envelope import Envelope, decode, encode
from edgewise.wire.messages import JobResult
from edgewise.wire.mqtt.connection import Broker, Incoming
from edgewise.wire.mqtt.link import Link
from edgewise.wire.mqtt.session import SessionCounter
from tests.api.harness import LOOPBACK
from tests.e2e.broker import CLOUD_USER, BrokerProcess, iotcore_broker, mosquitto_broker
from tests.fakes.engine import FakeEngine
from tests.fakes.serving import fake_model

JOBS = "/edgewise/v1/jobs"
UID = "dev"


@pytest.fixture(params=["iotcore", "mosquitto"])
def broker(request: pytest.FixtureRequest) -> Iterator[BrokerProcess]:
    with iotcore_broker() if request.param == "iotcore" else mosquitto_broker(users=(UID,)) as started:
        yield started


@dataclass
class Receiver:
    """Answers the results that arrive with `answers`, one after the other: "none", "junk" or what a `JobControl` says; "ack" once
    they are used up."""

    link: Link
    answers: list[str] = field(default_factory=list)
    got: list[Envelope] = field(default_factory=list)
    tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def arrived(self, incoming: Incoming) -> None:
        envelope = decode(incoming.payload)
        self.got.append(envelope)
        op = self.answers.pop(0) if self.answers else "ack"
        if op == "none":
            return
        told = {"key": envelope.key, "op": op}
        answer = Envelope(id=envelope.id, re=envelope.id, body=told if op != "junk" else {"op": "ack"})
        topic = topics.result(topics.parse(incoming.topic).uid, "dn", topics.parse(incoming.topic).rest[-1])
        self.tasks.add(asyncio.create_task(self.link.publish(topic, encode(answer))))


async def receiver_at(broker: BrokerProcess, home: Path, stack: AsyncExitStack) -> Receiver:
    where = Broker(host=broker.host, port=broker.port, uid=CLOUD_USER, password=broker.passwords.get(CLOUD_USER))

    async def birth() -> None:
        await receiver.link.publish(topics.HOST_LIVE, b"online")

    receiver = Receiver(Link(where, SessionCounter(home / "receiver-session"), birth=birth))
    receiver.link.on(topics.up("result"), receiver.arrived)
    receiver.link.start()
    stack.push_async_callback(receiver.link.stop)
    await receiver.link.wait_connected(30)
    return receiver


@dataclass
class Device:
    client: httpx.AsyncClient
    broker: BrokerLink
    deps: ApiDependencies

    async def leave(self, **fields: Any) -> str:
        body = {"url": "/v1/completions", "body": {"model": "tiny", "prompt": "hi", "max_tokens": 8}, "deliver": "mqtt"}
        told = await self.client.post(JOBS, json={**body, **fields})
        assert told.status_code == 202, told.text
        return str(told.json()["id"])

    async def delivery(self, id: str, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        for _ in range(1500):
            shown: dict[str, Any] = (await self.client.get(f"{JOBS}/{id}")).json()["delivery"]
            if condition(shown):
                return shown
            await asyncio.sleep(0.02)
        raise AssertionError(shown)


@pytest.fixture
async def device(broker: BrokerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Device]:
    """All parts of a device whose cloud lies behind the broker too, and does not answer."""
    monkeypatch.setattr("edgewise.edge.outbox.courier.pause_s", lambda sends: 0.1 if sends == 1 else 900.0)
    monkeypatch.setattr("edgewise.wire.mqtt.link._FIRST_DELAY_S", 0.05)
    overrides: dict[str, Any] = {
        "home": tmp_path,
        "mqtt.host": broker.host,
        "mqtt.port": broker.port,
        "mqtt.uid": UID,
        "cloud.transport": "mqtt",
        "outbox.webhook_timeout_s": 0.7,
    }
    if UID in broker.passwords:
        (tmp_path / "password").write_text(broker.passwords[UID])
        overrides["mqtt.password_file"] = tmp_path / "password"
    settings = load_settings(overrides=overrides, environ={}, default_file=tmp_path / "none.toml").settings
    deps = ApiDependencies(models=Models([fake_model(FakeEngine())]), pipelines_folder=tmp_path / "pipelines")
    parts = [*device_parts(settings, deps)]
    for part in parts:
        part.start()
    app = create_app(deps, [router for part in parts for router in part.routers])
    link = next(part for part in parts if isinstance(part, BrokerLink))
    try:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=LOOPBACK) as client:
            yield Device(client, link, deps)
    finally:
        for part in reversed(parts):
            await part.stop()
        deps.state.close()


async def test_a_result_is_sent_until_its_receiver_has_it_and_then_no_more(
    broker: BrokerProcess, device: Device, tmp_path: Path
) -> None:
    """Each next try would come after 15 minutes; what is back is tried at once."""
    async with AsyncExitStack() as stack:
        early = await device.leave(key="a/b")
        shown = await device.delivery(early, lambda shown: shown["tries"] == 2)
        assert "Nobody behind the broker" in shown["error"]
        receiver = await receiver_at(broker, tmp_path, stack)
        await device.delivery(early, lambda shown: shown["state"] == "delivered")
        receiver.answers = ["junk"]
        again = await device.leave()
        assert (await device.delivery(again, lambda shown: shown["state"] == "delivered"))["tries"] == 2
        receiver.answers = ["cancel"]
        unwanted = await device.leave()
        assert (await device.delivery(unwanted, lambda shown: shown["state"] == "failed"))["tries"] == 1
        broker.kill()
        late = await device.leave()
        await device.delivery(late, lambda shown: shown["tries"] == 2)
        broker.start()
        await device.delivery(late, lambda shown: shown["state"] == "delivered")
        assert device.broker.link.stopped_because is None  # one client of this name, not two that evict each other
    bodies: dict[str | None, list[JobResult]] = {}
    for envelope in receiver.got:
        bodies.setdefault(envelope.key, []).append(envelope.read(JobResult))
    assert set(bodies) == {early, again, unwanted, late}
    assert (len(bodies[again]), len(bodies[unwanted])) == (2, 1)
    assert all(result == results[0] for results in bodies.values() for result in results)
    assert bodies[early][0].type == "edgewise.job.succeeded"
    shown = (await device.client.get(f"{JOBS}/{early}")).json()
    assert bodies[early][0].data == {name: shown[name] for name in bodies[early][0].data}
    assert [event.kind for event in device.deps.events.since()].count("mqtt_up") == 2


async def test_a_result_beyond_what_the_broker_takes_is_kept_for_polling(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgewise.wire.mqtt.connection.MAX_PACKET", 700)
    shown = await device.delivery(await device.leave(), lambda shown: shown["state"] == "failed")
    assert "beyond the 700" in shown["error"]


async def test_what_must_not_leave_is_not_published(device: Device) -> None:
    body = {"url": "/v1/completions", "body": {"model": "tiny", "prompt": "hi"}, "deliver": "mqtt"}
    told = await device.client.post(JOBS, json=body, headers={"X-Edgewise-Privacy": "site"})
    assert (told.status_code, told.json()["error"]["param"]) == (403, "deliver")
