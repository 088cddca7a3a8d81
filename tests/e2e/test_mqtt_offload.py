"""Jobs over MQTT with real processes: a broker that is killed, a cloud that is killed, and a device between them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from edgewise.core.errors import LinkLost
from edgewise.core.settings_links import MqttSettings
from edgewise.edge.offload.mqtt import MqttTransport
from edgewise.wire.messages import Final, GenerateWork, JobControl, JobRequest
from edgewise.wire.mqtt.make import make_link
from edgewise.wire.stream_log import START, Place, StreamHash
from scripts.service import CloudService
from tests.e2e.broker import CLOUD_USER, BrokerProcess, iotcore_broker, mosquitto_broker
from tests.e2e.service import import_tiny, new_home

TOKENS = 120
DEVICE = "dev-1"


@dataclass
class Site:
    """A broker and the cloud behind it."""

    broker: BrokerProcess
    cloud: CloudService

    def settings(self, uid: str, folder: Path) -> MqttSettings:
        return MqttSettings(
            host=self.broker.host, port=self.broker.port, uid=uid, password_file=_secret(self.broker, uid, folder)
        )


def _secret(broker: BrokerProcess, uid: str, folder: Path) -> Path | None:
    if uid not in broker.passwords:
        return None
    path = folder / f"{uid}.password"
    path.write_text(broker.passwords[uid])
    return path


@pytest.fixture(scope="module", params=["iotcore", "mosquitto"])
def site(request: pytest.FixtureRequest) -> Iterator[Site]:
    with ExitStack() as stack:
        opened = iotcore_broker() if request.param == "iotcore" else mosquitto_broker(users=(DEVICE,))
        broker = stack.enter_context(opened)
        home = stack.enter_context(new_home(starter=False))
        import_tiny(home)
        secret = _secret(broker, CLOUD_USER, home)
        environment = {"EDGEWISE_ENGINE__THREADS": "1", "EDGEWISE_MQTT__HOST": broker.host}
        environment["EDGEWISE_MQTT__PORT"] = str(broker.port)
        if secret is not None:
            environment["EDGEWISE_MQTT__PASSWORD_FILE"] = str(secret)
        cloud = stack.enter_context(CloudService(home, ["--model", "tiny"], environment=environment))
        yield Site(broker, cloud)


@pytest.fixture
async def device(site: Site, tmp_path: Path) -> AsyncIterator[MqttTransport]:
    transport = MqttTransport(make_link(site.settings(DEVICE, tmp_path), tmp_path, DEVICE))
    yield transport
    await transport.close()


def job(key: str) -> JobRequest:
    work = GenerateWork(model="tiny", prompt=(1, 2, 3), sampling={"max_tokens": TOKENS, "temperature": 0.0, "seed": 3})
    return JobRequest(key=key, work=work)


async def submit(device: MqttTransport, key: str) -> None:
    """Again and again: a cloud that starts answers after a while."""
    for attempt in range(10):
        try:
            await device.submit(job(key))
        except LinkLost:
            if attempt == 9:
                raise
        else:
            return


async def read(
    device: MqttTransport,
    key: str,
    at: frozenset[int] = frozenset(),
    disturb: Callable[[], Awaitable[None]] | None = None,
) -> tuple[list[int], Final]:
    """The whole stream; before each offset of `at` something is disturbed, once."""
    tokens: list[int] = []
    left, attempt = set(at), 1
    for _ in range(40):
        try:
            async for event in device.events(key, Place(attempt, len(tokens)) if tokens else START):
                if isinstance(event, Final):
                    assert not left, "the stream ended before the fault"
                    return tokens, event
                assert event.offset == len(tokens)  # nothing twice, nothing missing
                tokens += event.tokens or ()
                attempt = event.attempt
                due = {offset for offset in left if offset <= len(tokens)}
                left -= due
                if due and disturb is not None:
                    await disturb()
        except LinkLost:
            continue
    raise AssertionError(f"no end after 40 losses, {len(tokens)} tokens")


def sha256(tokens: list[int]) -> str:
    hashed = StreamHash()
    hashed.tokens(tokens)
    return hashed.hexdigest()


async def test_a_broker_that_is_killed_twice_in_a_stream_changes_nothing(site: Site, device: MqttTransport) -> None:
    await submit(device, "plain")
    plain, plain_final = await read(device, "plain")
    assert len(plain) == TOKENS

    async def kill_broker() -> None:
        site.broker.kill()
        site.broker.start()

    await submit(device, "broken")
    tokens, final = await read(device, "broken", frozenset({1, 90}), kill_broker)
    assert tokens == plain
    assert final.sha256 == plain_final.sha256 == sha256(tokens)
    assert final.usage.completion_tokens == plain_final.usage.completion_tokens == TOKENS  # billed once
    await device.control(JobControl(key="broken", op="ack", after=f"1.{TOKENS}", done=True))


async def test_a_cloud_that_is_killed_in_mid_stream_goes_on_after_its_restart(
    site: Site, device: MqttTransport
) -> None:
    await submit(device, "first")
    plain, _ = await read(device, "first")

    async def kill_cloud() -> None:
        site.cloud.process.kill()
        site.cloud.process.wait()
        site.cloud.start()

    await submit(device, "second")
    tokens, final = await read(device, "second", frozenset({30}), kill_cloud)
    assert site.cloud.process.poll() is None, site.cloud.log_tail()
    assert tokens == plain
    assert final.sha256 == sha256(tokens)
