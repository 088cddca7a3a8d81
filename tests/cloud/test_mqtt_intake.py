"""The device's transport and the cloud's intake over real brokers; the cloud's engine alone is a double."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import random
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from edgewise.cloud.mqtt_duty import Duty
from edgewise.core.errors import (
    DigestMismatch,
    LinkLost,
    ModelNotFound,
    NotAuthenticated,
    NotFound,
    PayloadTooLarge,
    RangeNotThere,
)
from edgewise.core.settings_schema import Settings
from edgewise.edge.offload import mqtt as transport_module
from edgewise.edge.offload.mqtt import MqttTransport
from edgewise.security.keys import KeyStore
from edgewise.wire import topics
from edgewise.wire.asking import BLOCK, block_at
from edgewise.wire.codec import encode_json
from edgewise.wire.envelope import encode, new_ulid
from edgewise.wire.messages import Blob, Final, JobControl
from edgewise.wire.stream_log import START, Place
from tests.cloud.mqtt_world import LONG, World, cloud_behind, job, new_link, persist, read, sha256, until
from tests.e2e.broker import BrokerProcess, iotcore_broker, mosquitto_broker
from tests.fakes.engine import FakeEngine


@pytest.fixture(params=["iotcore", "mosquitto"])
def broker(request: pytest.FixtureRequest) -> Iterator[BrokerProcess]:
    with iotcore_broker() if request.param == "iotcore" else mosquitto_broker(users=("dev",)) as started:
        yield started


@pytest.fixture
async def world(broker: BrokerProcess, tmp_path: Path) -> AsyncIterator[World]:
    engine = FakeEngine(script=lambda request: LONG[len(request.output) :])
    async with AsyncExitStack() as stack:
        intake, cloud_link = await stack.enter_async_context(cloud_behind(broker, tmp_path / "cloud", engine))
        link = new_link(broker, "dev", tmp_path)
        device = MqttTransport(link)
        stack.push_async_callback(device.close)
        yield World(broker, engine, intake, device, link, cloud_link)


# --- jobs -----------------------------------------------------------------------------------------------------------------


async def test_a_job_its_stream_and_its_acknowledgement(world: World) -> None:
    device = world.device
    info = await device.info()
    assert [(one.model, info.tenant) for one in info.models] == [("tiny", "line-1")]
    accepted = await device.submit(job(max_tokens=300))
    assert (await device.submit(job(max_tokens=300))).id == accepted.id
    tokens, final = await read(device, "k")
    assert tokens == [*LONG]  # more than one grant of credit
    assert (final.state, final.count, final.sha256) == ("succeeded", 300, sha256(tokens))
    assert (await read(device, "k", Place(1, 250)))[0] == [*LONG[250:]]
    traffic = device.traffic("k")
    assert 0 < traffic.up < device.sent_bytes
    assert 0 < traffic.down < device.received_bytes
    await device.control(JobControl(key="k", op="ack", after="1.300", done=True))
    assert device.traffic("k") == (0, 0)
    assert len(world.engine.requests) == 1


async def test_refusals_come_back_as_the_errors_that_they_are(world: World) -> None:
    device = world.device
    with pytest.raises(ModelNotFound, match="'nothing' is not here"):
        await device.submit(job(work={"model": "nothing"}))
    with pytest.raises(NotFound):
        await read(device, "never-submitted")
    await device.submit(job())
    with pytest.raises(RangeNotThere):
        await read(device, "k", Place(1, 500))
    with pytest.raises(PayloadTooLarge):
        await device.submit(job("large", work={"prompt": [2**30] * 250_000}))


async def test_a_cancel_reaches_the_engine(world: World) -> None:
    world.engine.delay_s = 0.05
    await world.device.submit(job(max_tokens=300))
    stream = world.device.events("k", START)
    await anext(stream)
    await world.device.control(JobControl(key="k", op="cancel"))
    async for event in stream:
        if isinstance(event, Final):
            assert event.state == "cancelled"
    assert world.engine.aborted == 1


@pytest.mark.parametrize("kill_at", [3, 130, 290])
async def test_a_broker_that_is_killed_in_a_stream_costs_nothing(world: World, kill_at: int) -> None:
    world.engine.delay_s = 0.005
    await world.device.submit(job(max_tokens=300))
    tokens: list[int] = []
    final: Final | None = None
    losses, killed = 0, False
    while final is None:
        try:
            async for event in world.device.events("k", Place(1, len(tokens))):
                if isinstance(event, Final):
                    final = event
                    break
                assert event.offset == len(tokens)
                tokens += event.tokens or ()
                if not killed and len(tokens) >= kill_at:
                    killed = True
                    world.broker.kill()
                    world.broker.start()
        except LinkLost:
            losses += 1
            assert losses < 20
    assert killed
    assert tokens == [*LONG]
    assert final.sha256 == sha256(tokens)
    assert len(world.engine.requests) == 1


async def test_messages_lost_on_the_way_are_asked_for_again(world: World) -> None:
    rng = random.Random(7)
    lost: list[str] = []

    def lossy(handler: Callable[[Any], None], incoming: Any) -> None:
        if rng.random() < 0.1:
            lost.append(incoming.topic)
        else:
            handler(incoming)

    for link in (world.link, world.cloud_link):
        link._handlers[:] = [(filter, partial(lossy, handler)) for filter, handler in link._handlers]
    await persist(lambda: world.device.submit(job(max_tokens=300)))
    tokens: list[int] = []
    final: Final | None = None
    while final is None:
        with contextlib.suppress(LinkLost):
            async for event in world.device.events("k", Place(1, len(tokens)) if tokens else START):
                if isinstance(event, Final):
                    final = event
                    break
                assert event.offset == len(tokens)
                tokens += event.tokens or ()
    assert tokens == [*LONG]
    assert final.sha256 == sha256(tokens)
    assert {topic.split("/")[4] for topic in lost} >= {"up", "dn"}  # both ways
    content = random.Random(4).randbytes(10 * BLOCK)
    blob = await persist(lambda: world.device.put_blob(content, "image/png"))
    assert await persist(lambda: world.device.get_blob(blob)) == content


async def test_without_a_cloud_behind_the_broker_the_link_counts_as_lost(
    broker: BrokerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport_module, "ANSWER_S", (0.2, 0.2))
    device = MqttTransport(new_link(broker, "dev", tmp_path))
    try:
        with pytest.raises(LinkLost, match="no cloud answers"):
            await device.info()
        broker.kill()
        monkeypatch.setattr(transport_module, "CONNECT_S", 0.5)
        with pytest.raises(LinkLost):
            await device.submit(job())
    finally:
        await device.close()


# --- what nobody should send ---------------------------------------------------------------------------------------------


async def test_hostile_messages_are_dropped_counted_and_told(world: World) -> None:
    await world.device.info()
    link, dropped = world.link, world.intake.dropped
    topic = topics.job_request("bulk", "dev")
    oversize = encode_json({"id": new_ulid(), "body": {"x": "y" * 1_048_500}})
    for payload in (b"", b"noise", b"\xa1\x61a\x9b\x00\x00\x00\xff\xff\xff\xff\xff", oversize, b'{"body":{}}'):
        await link.publish(topic, payload)
    await link.publish(topic, encode_json({"v": 9, "id": new_ulid(), "body": {}}))
    await link.publish(topic, encode_json({"id": new_ulid(), "body": {"key": "k", "work": {"kind": "dance"}}}))
    await link.publish("f/1/d/dev/up/job/x", encode(link.sealer.seal(JobControl(key="k", op="ack"))) + b"}")
    await link.publish("f/1/d/dev/up/blob/x/blk", b"\xa0")
    await until(lambda: dropped.total() == 9, "all nine are counted")
    assert dropped == {"bad_message": 8, "version": 1}
    assert (await world.device.info()).name  # it lives


async def test_a_retained_request_is_not_carried_out_when_the_cloud_starts(tmp_path: Path) -> None:
    with mosquitto_broker(users=("dev",)) as broker:  # 2.0.11 hands what is retained to shared subscriptions
        link = new_link(broker, "dev", tmp_path)
        link.start()
        try:
            await link.wait_connected(30)
            payload = encode(link.sealer.seal(job(), key="k"))
            await link.publish(topics.job_request("interactive", "dev"), payload, retain=True)
            engine = FakeEngine(script=lambda request: LONG)
            async with cloud_behind(broker, tmp_path / "cloud", engine) as (intake, _):
                await until(lambda: intake.dropped["retained"] == 1, "it is counted")
                with pytest.raises(NotFound):
                    await intake._desk.find("line-1", "dev", "k")
        finally:
            await link.stop()


async def test_a_device_speaks_for_itself_only(world: World) -> None:
    await world.device.submit(job(device="somebody else"))
    found = await world.intake._desk.find("line-1", "dev", "k")
    assert found.device == "dev"


async def test_a_job_that_came_in_over_http_goes_on_here_while_its_key_holds(world: World, tmp_path: Path) -> None:
    id = (
        await world.intake._desk.submit("line-1", job(device="dev", max_tokens=300))
    ).id  # as the route does with its key
    assert await world.device.knows("k", id)
    assert not await world.device.knows("k", "job_of_another_table")
    assert not await world.device.knows("unknown", id)
    assert (await read(world.device, "k"))[0] == [*LONG]
    assert len(world.engine.requests) == 1
    with KeyStore(Settings(home=tmp_path / "cloud").keys_file) as keys:
        keys.revoke("line-1")
        for refused in (world.device.info(), world.device.submit(job("new")), world.device.knows("k", id)):
            with pytest.raises(NotAuthenticated, match="'dev' has expired or was revoked"):
                await refused
        keys.create("line-1", device="dev")
        assert await world.device.knows("k", id)  # rotated


@pytest.mark.parametrize("make", [iotcore_broker, mosquitto_broker])
async def test_a_second_cloud_service_finds_the_first_and_takes_nothing(make: Any, tmp_path: Path) -> None:
    first, second = (FakeEngine(script=lambda request: LONG[len(request.output) :]) for _ in range(2))
    with make() as broker:
        async with cloud_behind(broker, tmp_path / "first", first) as (serving, _):
            assert await serving._duty.wait()
            async with cloud_behind(broker, tmp_path / "second", second, uid="cloud-2") as (intake, link):
                await until(lambda: intake._duty.stood_down and not link.connected, "it stands down")
                device = MqttTransport(new_link(broker, "dev", tmp_path))
                try:
                    for name in ("a", "b", "c"):
                        await device.submit(job(name, max_tokens=300))
                        assert (await read(device, name))[0] == [*LONG]
                finally:
                    await device.close()
            assert not serving._duty.stood_down
    assert (len(first.requests), len(second.requests)) == (3, 0)


async def test_a_fault_before_a_service_has_told_of_itself_keeps_no_request_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    whole = Duty._served
    faults = [ValueError("a fault")] * 3

    def served(duty: Duty) -> float:
        if faults:
            raise faults.pop()
        return whole(duty)

    monkeypatch.setattr(Duty, "_served", served)
    engine = FakeEngine(script=lambda request: LONG[len(request.output) :])
    with iotcore_broker() as broker:
        async with cloud_behind(broker, tmp_path / "cloud", engine):
            device = MqttTransport(new_link(broker, "dev", tmp_path))
            try:
                await device.submit(job(max_tokens=300))
                assert (await read(device, "k"))[0] == [*LONG]
            finally:
                await device.close()
    broke = [record for record in caplog.records if record.message == "mqtt_duty_broke"]
    assert [bool(record.exc_info) for record in broke] == [True]  # once, however often it comes back


# --- blobs ----------------------------------------------------------------------------------------------------------------


async def test_blobs_go_up_and_down_in_blocks(world: World) -> None:
    content = random.Random(1).randbytes(10 * BLOCK + 17)
    blob = await world.device.put_blob(content, "image/png")
    assert blob == Blob(sha256=hashlib.sha256(content).hexdigest(), bytes=len(content), media="image/png")
    assert await world.device.put_blob(content, "image/png") == blob  # it is there
    assert await world.device.get_blob(blob) == content
    assert (await world.intake._desk.blobs.find("line-1", blob.sha256)).media == "image/png"
    empty = await world.device.put_blob(b"", "text/plain")
    assert await world.device.get_blob(empty) == b""


async def test_equal_blobs_at_once_are_each_whole(world: World) -> None:
    content = random.Random(5).randbytes(5 * BLOCK)
    blobs = await asyncio.gather(*(world.device.put_blob(content, "image/png") for _ in range(3)))
    assert await asyncio.gather(*(world.device.get_blob(blob) for blob in blobs)) == [content] * 3


async def test_an_answer_that_comes_twice_is_no_fault(world: World) -> None:
    await world.device.info()
    (handler,) = [handler for _, handler in world.link._handlers]
    answers: list[Any] = []
    world.link._handlers[0] = (world.link._handlers[0][0], answers.append)
    asking = asyncio.create_task(world.device.info())
    await until(lambda: bool(answers), "the answer")
    for _ in range(2):
        handler(answers[0])
    assert (await asking).name
    assert world.device.dropped == 0


async def test_a_blob_too_large_or_unknown_is_refused(world: World) -> None:
    with pytest.raises(PayloadTooLarge):
        await world.device.put_blob(bytes(4 * 1024**2 + 1), "image/png")
    with pytest.raises(NotFound):
        await world.device.get_blob(Blob(sha256="0" * 64, bytes=5))


async def test_blobs_survive_a_broker_that_is_killed(world: World) -> None:
    content = random.Random(2).randbytes(24 * BLOCK)

    async def kill_soon() -> None:
        await until(lambda: world.device.sent_bytes > 5 * BLOCK, "part of it went up")
        world.broker.kill()
        world.broker.start()

    killing = asyncio.create_task(kill_soon())
    blob = None
    for _ in range(10):
        try:
            blob = await world.device.put_blob(content, "image/png")
            break
        except LinkLost:
            continue
    await killing
    assert blob is not None
    assert await world.device.get_blob(blob) == content


async def test_a_block_that_was_changed_is_not_taken(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    content = random.Random(3).randbytes(3 * BLOCK)
    blob = await world.device.put_blob(content, "image/png")
    damaged: list[int] = []

    def damage(blob: Blob, data: bytes, offset: int) -> Any:
        block = block_at(blob, data, offset)
        if offset == BLOCK and not damaged:
            damaged.append(offset)
            return block.model_copy(update={"data": b"x" + block.data[1:]})
        return block

    monkeypatch.setattr("edgewise.cloud.mqtt_intake.block_at", damage)
    assert await world.device.get_blob(blob) == content
    assert damaged
    always = "edgewise.cloud.mqtt_intake.block_at"
    monkeypatch.setattr(always, lambda blob, data, offset: block_at(blob, b"x" + data[1:], offset))
    with pytest.raises(DigestMismatch):
        await world.device.get_blob(blob)
