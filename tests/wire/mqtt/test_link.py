from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from edgewise.core.clock import FakeClock
from edgewise.core.errors import LinkLost, NotAuthenticated, NotPermitted, PayloadTooLarge
from edgewise.wire import topics
from edgewise.wire.envelope import decode
from edgewise.wire.messages import JobControl
from edgewise.wire.mqtt import link as link_module
from edgewise.wire.mqtt.connection import Broker, Connection, Incoming, Will
from edgewise.wire.mqtt.link import Link, LinkEvent, _Retries, matches
from edgewise.wire.mqtt.session import SessionCounter
from scripts.service import free_port
from tests.e2e.broker import CLOUD_USER, BrokerProcess, mosquitto_broker
from tests.wire.mqtt.conftest import LinkFactory, impatient, until

CONNECT_S = 30.0


def keep(got: list[bytes], incoming: Incoming) -> None:
    got.append(incoming.payload)


def returned(link: Link, connects: int) -> bool:
    return link.connected and link.connects == connects


async def started(link: Link) -> Link:
    link.start()
    await link.wait_connected(CONNECT_S)
    return link


@contextmanager
def frozen(broker: BrokerProcess) -> Iterator[None]:
    """The broker's process stands still: connections stay, nothing is answered."""
    assert broker.process is not None
    os.kill(broker.process.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, broker.process.pid, os.WSTOPPED | os.WNOWAIT)  # its threads may run on for a moment
    try:
        yield
    finally:
        os.kill(broker.process.pid, signal.SIGCONT)


async def test_messages_arrive_and_subscriptions_return_after_the_broker_died(
    broker: BrokerProcess, new_link: LinkFactory
) -> None:
    got: list[bytes] = []
    receiver, sender = new_link(broker, "b"), new_link(broker, "a")
    receiver.on("f/1/d/b/dn/#", lambda incoming: got.append(incoming.payload))
    await started(receiver)
    await started(sender)
    await sender.publish("f/1/d/b/dn/job/1", b"first")
    await until(lambda: got == [b"first"], "the first message")
    broker.kill()
    await until(lambda: not sender.connected and not receiver.connected, "both links are down")
    with pytest.raises(LinkLost):
        await sender.publish("f/1/d/b/dn/job/1", b"while it was down")
    broker.start()
    await sender.wait_connected(CONNECT_S)
    await receiver.wait_connected(CONNECT_S)
    assert receiver.connects == 2
    await sender.publish("f/1/d/b/dn/job/1", b"second")
    await until(lambda: b"second" in got, "the second message")
    assert b"while it was down" not in got  # what failed is not sent later behind the sender's back


async def test_a_fault_in_a_handler_costs_one_message(broker: BrokerProcess, new_link: LinkFactory) -> None:
    got: list[bytes] = []

    def handler(incoming: Incoming) -> None:
        if incoming.payload == b"bad":
            raise RuntimeError("planted")
        got.append(incoming.payload)

    link = new_link(broker, "a")
    link.on("f/1/d/a/own/x", handler)
    await started(link)
    for payload in (b"bad", b"good"):
        await link.publish("f/1/d/a/own/x", payload)
    await until(lambda: got == [b"good"], "the message after the bad one")
    assert link.connected
    assert link.connects == 1


async def test_what_came_while_away_is_delivered_on_return(broker: BrokerProcess, new_link: LinkFactory) -> None:
    got: list[bytes] = []
    first = new_link(broker, "b")
    first.on("f/1/d/b/dn/#", lambda incoming: None)
    await started(first)
    await first.stop()
    sender = await started(new_link(broker, "a"))
    await sender.publish("f/1/d/b/dn/job/1", b"kept")
    second = new_link(broker, "b")
    second.on("f/1/d/b/dn/#", lambda incoming: got.append(incoming.payload))
    await started(second)
    await until(lambda: got == [b"kept"], "the message that the broker kept")
    assert second.connection.session_present


async def test_a_shared_subscription_gives_each_message_to_one(broker: BrokerProcess, new_link: LinkFactory) -> None:
    got: dict[str, list[bytes]] = {"w1": [], "w2": []}
    for name in got:
        worker = new_link(broker, name)
        worker.on(topics.job_requests("bulk"), partial(keep, got[name]))
        await started(worker)
    sender = await started(new_link(broker, "a"))
    sent = [str(number).encode() for number in range(20)]
    for payload in sent:
        await sender.publish(topics.job_request("bulk", "a"), payload)
    await until(lambda: sum(map(len, got.values())) >= 20, "all twenty")
    assert sorted(got["w1"] + got["w2"]) == sorted(sent)


async def test_the_will_carries_the_session_and_a_clean_stop_has_none(
    broker: BrokerProcess, new_link: LinkFactory
) -> None:
    seen: list[bytes] = []
    watcher = new_link(broker, "watcher")
    watcher.on("f/1/d/a/up/live", lambda incoming: seen.append(incoming.payload))
    await started(watcher)
    born: list[int] = []

    async def birth() -> None:
        born.append(link.sealer.ep)

    def will(ep: int) -> Will:
        return Will("f/1/d/a/up/live", f"gone {ep}".encode())

    link = new_link(broker, "a", will=will, birth=birth)
    await started(link)
    link.connection.end("the test cuts it")
    await until(lambda: b"gone 1" in seen, "the will of the first session")
    await until(lambda: born == [1, 2], "the second birth")
    await link.stop(("f/1/d/a/up/live", b"stopped"))
    await until(lambda: b"stopped" in seen, "the farewell")
    await asyncio.sleep(0.5)
    assert b"gone 2" not in seen


async def test_two_clients_of_one_name_stop_and_say_so(broker: BrokerProcess, new_link: LinkFactory) -> None:
    if broker.name == "iotcore":
        pytest.skip("iotcore sends a returning session nothing that is retained, so the note of the other is not seen")
    events: list[LinkEvent] = []
    links = [new_link(broker, "twin", home=home, on_event=events.append) for home in ("one", "two")]
    for link in links:
        link.start()
    await until(lambda: any(event.kind == "clone" for event in events), "the alarm")
    stopped = [link for link in links if link.stopped_because]
    assert stopped
    await until(lambda: not any(link.connected for link in stopped), "the stopped one is disconnected")
    with pytest.raises(LinkLost, match="Another client uses the name 'twin'"):
        await stopped[0].wait_connected(1)


async def test_a_client_that_returns_or_restarts_is_no_clone(broker: BrokerProcess, new_link: LinkFactory) -> None:
    events: list[LinkEvent] = []
    for home in ("one", "two", "three"):  # three lives of one device
        link = await started(new_link(broker, "a", home=home, on_event=events.append))
        for connects in (2, 3):
            link.connection.end("the test cuts it")
            await until(partial(returned, link, connects), "it returns")
        await link.stop()
    assert {event.kind for event in events} == {"up", "down"}


async def test_a_broker_that_went_back_to_an_older_state_tells_of_no_clone(
    broker: BrokerProcess, new_link: LinkFactory
) -> None:
    if broker.name == "iotcore":
        pytest.skip("iotcore sends a returning session nothing that is retained, and forgets all when it ends")
    notes: list[bytes] = []
    watcher = new_link(broker, "watcher")
    watcher.on("f/1/d/a/own/session", lambda incoming: notes.append(incoming.payload))
    await started(watcher)
    await (await started(new_link(broker, "a", home="one"))).stop()
    await until(lambda: len(notes) == 1, "the note of the first life")
    link = await started(new_link(broker, "a", home="two"))
    for connects in (2, 3, 4):
        await link.publish("f/1/d/a/own/session", notes[0], retain=True)  # as if the second life's had been lost
        link.connection.end("the test cuts it")
        await until(partial(returned, link, connects), "it returns")
    assert link.stopped_because is None


async def test_a_broker_that_stands_still_is_found_out(broker: BrokerProcess, new_link: LinkFactory) -> None:
    link = await started(new_link(broker, "a", keepalive_s=1))
    with frozen(broker):
        await until(lambda: not link.connected, "the missing answer to a ping")
    await link.wait_connected(CONNECT_S)


async def test_a_broker_that_acknowledges_nothing_is_left_before_a_ping_would_tell(
    broker: BrokerProcess, new_link: LinkFactory
) -> None:
    events: list[LinkEvent] = []
    link = await started(new_link(broker, "a", on_event=events.append))
    with frozen(broker):
        impatient(link, 0.1)
        await asyncio.sleep(1.5)  # nothing is owed: silence means nothing
        assert link.connected
        await link.send("f/1/d/a/up/x", link.sealer.seal(JobControl(key="k", op="ack")))
        await until(lambda: any(event.kind == "down" for event in events), "the missing acknowledgement")
    assert "said nothing" in next(event.message for event in events if event.kind == "down")
    await link.wait_connected(CONNECT_S)


async def test_what_waits_for_the_broker_is_bounded(
    broker: BrokerProcess, new_link: LinkFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_module, "MAX_WAITING", 1_000_000)
    link = await started(new_link(broker, "a", silence_s=60))
    sent = 0
    with frozen(broker):

        async def flood() -> None:
            nonlocal sent
            while True:
                await link.send("f/1/d/a/up/x/y", link.sealer.seal(JobControl(key="k" * 100, op="ack")))
                sent += 1

        task = asyncio.create_task(flood())
        await until(lambda: link.connection.waiting_bytes > 990_000, "the limit is reached")
        before = sent
        await asyncio.sleep(0.3)
        assert sent == before
        assert link.connection.waiting_bytes <= 1_000_000
    await until(lambda: sent > before, "it goes on")
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_message_beyond_the_limit_is_refused_before_it_is_sent(
    broker: BrokerProcess, new_link: LinkFactory
) -> None:
    link = await started(new_link(broker, "a"))
    with pytest.raises(PayloadTooLarge, match="Raise max_packet_size"):
        await link.publish("f/1/d/a/up/x", bytes(2 * 1024**2))
    assert link.connected


async def test_an_envelope_goes_through(broker: BrokerProcess, new_link: LinkFactory) -> None:
    got: list[Incoming] = []
    link = new_link(broker, "a")
    link.on("f/1/d/a/own/x", got.append)
    await started(link)
    sent = link.sealer.seal(JobControl(key="k", op="grant", credit=5), ttl_ms=1500)
    await link.send("f/1/d/a/own/x", sent, binary=True)
    await until(lambda: bool(got), "the envelope")
    assert decode(got[0].payload) == sent


# --- mosquitto's own: users, access list, persistence ----------------------------------------------------------------------


async def test_mosquitto_holds_each_device_to_its_own_topics(new_link: LinkFactory) -> None:
    with mosquitto_broker(users=("dev-a", "dev-b")) as broker:
        got: list[str] = []
        cloud = new_link(broker, CLOUD_USER)
        cloud.on("f/1/d/+/up/#", lambda incoming: got.append(incoming.topic))
        await started(cloud)
        link = new_link(broker, "dev-a")
        link.on(topics.down("dev-b"), lambda incoming: got.append("spied: " + incoming.topic))
        await started(link)
        await link.publish("f/1/d/dev-a/up/x", b"mine")
        for foreign in ("f/1/d/dev-b/up/x", "f/1/job/bulk/dev-b", "f/1/d/dev-a/dn/x"):
            with pytest.raises(NotPermitted):
                await link.publish(foreign, b"not mine")
        await cloud.publish("f/1/d/dev-b/dn/x", b"for b only")
        await until(lambda: bool(got), "the message that is allowed")
        await asyncio.sleep(0.3)
        assert got == ["f/1/d/dev-a/up/x"]


async def test_mosquitto_forces_the_client_id_so_that_nobody_evicts_another(new_link: LinkFactory) -> None:
    with mosquitto_broker(users=("dev-a", "dev-b")) as broker:
        victim = await started(new_link(broker, "dev-a"))
        connection = Connection(
            Broker(host=broker.host, port=broker.port, uid="dev-b", password=broker.passwords["dev-b"]), lambda _: None
        )
        connection._client._client_id = b"dev-a"  # what an attacker would do
        await connection.open()
        await asyncio.sleep(0.5)
        assert victim.connects == 1
        assert victim.connected
        await connection.close()


async def test_mosquitto_refuses_a_wrong_password_by_reason(new_link: LinkFactory) -> None:
    with mosquitto_broker(users=("dev-a",)) as broker:
        connection = Connection(Broker(host=broker.host, port=broker.port, uid="dev-a", password="no"), lambda _: None)
        with pytest.raises((NotAuthenticated, NotPermitted), match=r"Check mqtt\.uid"):
            await connection.open()
        await connection.close()


async def test_mosquitto_keeps_sessions_and_retained_messages_over_a_kill(new_link: LinkFactory) -> None:
    with mosquitto_broker() as broker:
        first = new_link(broker, "b")
        first.on("f/1/d/b/dn/#", lambda incoming: None)
        await started(first)
        await first.stop()
        sender = await started(new_link(broker, "a"))
        await sender.publish("f/1/d/b/dn/job/1", b"queued")
        await sender.publish("f/1/d/a/up/live", b"retained", retain=True)
        file = broker.folder / "mosquitto.db"

        def saved() -> bool:
            content = file.read_bytes() if file.exists() else b""
            return b"queued" in content and b"retained" in content

        await until(saved, "it has saved both")  # at a turn of its loop
        broker.kill()
        broker.start()
        got: list[bytes] = []
        second = new_link(broker, "b")
        second.on("f/1/d/b/dn/#", lambda incoming: got.append(incoming.payload))
        second.on("f/1/d/a/up/live", lambda incoming: got.append(incoming.payload))
        await started(second)
        await until(lambda: sorted(got) == [b"queued", b"retained"], "both")


# --- without a broker ------------------------------------------------------------------------------------------------------


class Recorder(random.Random):
    def __init__(self) -> None:
        super().__init__()
        self.bounds: list[tuple[float, float]] = []

    def uniform(self, a: float, b: float) -> float:
        self.bounds.append((a, b))
        return b

    def drawn(self, count: int) -> bool:
        return len(self.bounds) == count


async def test_reconnects_are_spread_over_half_of_what_the_outage_has_lasted(tmp_path: Path) -> None:
    clock, rng = FakeClock(), Recorder()
    where = Broker(host="127.0.0.1", port=free_port(), uid="a")
    link = Link(where, SessionCounter(tmp_path / "ep"), clock=clock, rng=rng)
    link.start()
    waited = []
    for attempt in range(1, 21):
        await until(partial(rng.drawn, attempt), "the next attempt failed")
        await asyncio.sleep(0)
        waited.append(clock.monotonic())
        clock.advance(rng.bounds[-1][1])
    await link.stop()
    assert waited[:4] == [0, 1, 2, 3]  # a broker that is away for two seconds is found again before the third
    assert rng.bounds[:20] == [(0, min(120.0, max(1.0, away / 2))) for away in waited]
    assert rng.bounds[19] == (0, 120.0)
    assert int((tmp_path / "ep").read_text()) >= 20  # counted before each attempt, not after


def test_a_connection_that_lived_ends_the_outage_and_one_that_was_dropped_does_not() -> None:
    rng = Recorder()
    retries = _Retries(rng)
    assert retries.delay(100, None) == 1
    assert retries.delay(140, None) == 20
    assert retries.delay(160, 159.5) == 30  # taken and dropped
    assert retries.delay(190, 189) == 1
    assert retries.delay(192, None) == 1
    assert retries.delay(232, None) == 21
    assert retries.delay(233, 232.9, carried=True) == 1  # a link that flaps, and is of use
    assert rng.bounds == [(0, 1), (0, 20), (0, 30), (0, 1), (0, 1), (0, 21), (0, 1)]


def test_a_fleet_that_lost_its_broker_together_does_not_come_back_in_step() -> None:
    """A thousand devices and a broker that is away for a minute: in no second do more than a few of them return."""
    back = []
    for device in range(1000):
        retries = _Retries(random.Random(device))
        now = 0.0
        while now < 60:
            now += retries.delay(now, None)
        back.append(int(now - 60))
    assert max(back) <= 60 / 2
    assert max(back.count(second) for second in range(31)) < 200


def test_the_counter_of_sessions_goes_on_over_lives_and_damage(tmp_path: Path) -> None:
    path = tmp_path / "ep"
    assert [SessionCounter(path).next() for _ in range(3)] == [1, 2, 3]
    for damage in ("", "x", "-5", "9" * 30):
        path.write_text(damage)
        assert SessionCounter(path).next() > 1_700_000_000
    path.write_bytes(b"\xff\xfe")
    assert SessionCounter(path).next() > 1_700_000_000


@pytest.mark.parametrize(
    ("filter", "topic", "expected"),
    [
        ("a/+/c", "a/b/c", True),
        ("a/+/c", "a/b/d", False),
        ("a/#", "a/b/c", True),
        ("a/#", "a", True),
        ("a/+", "a", False),
        ("a", "a/b", False),
        ("$share/w/a/#", "a/b", True),
    ],
)
def test_filters(filter: str, topic: str, expected: bool) -> None:
    assert matches(filter, topic) is expected
