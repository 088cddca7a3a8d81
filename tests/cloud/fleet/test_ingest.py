"""What devices send: each message once, acknowledged when it is on disk, and nothing that harms the others."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from edgewise.cloud.fleet.db.database import FleetDatabase
from edgewise.cloud.fleet.db.tables import Arrival, EventRow, SampleRow
from edgewise.core.errors import StorageError
from edgewise.wire import topics
from edgewise.wire.codec import MAX_MESSAGE
from edgewise.wire.envelope import new_ulid
from edgewise.wire.fleet import Event, Live
from edgewise.wire.mqtt.connection import Incoming
from tests.cloud.fleet.bench import ADMIN, VIEWER, Bench, empty, until
from tests.e2e.postgres import PostgresServer

SAMPLE = {"group": "device", "samples": [{"values": {"x": 1.0}}]}


async def rows(bench: Bench, table: Any) -> int:
    return await bench.db.read(lambda session: session.scalar(select(func.count()).select_from(table)) or 0)


async def test_a_repeat_is_acknowledged_again_and_does_nothing(bench: Bench) -> None:
    await bench.device()
    id = await bench.say(topics.telemetry("d1", "device"), SAMPLE)
    await bench.say(topics.telemetry("d1", "device"), SAMPLE, id=id)
    assert bench.down.acknowledged == [id, id]
    assert await rows(bench, SampleRow) == 1


async def test_a_message_that_comes_twice_in_one_batch_counts_once(bench: Bench) -> None:
    await bench.device()
    id = new_ulid()
    for _ in range(3):
        await bench.say(topics.telemetry("d1", "device"), SAMPLE, id=id, settle=False)
    await bench.settle()
    assert await rows(bench, SampleRow) == 1
    assert set(bench.down.acknowledged) == {id}


async def test_many_messages_are_one_transaction_and_all_are_stored(bench: Bench) -> None:
    await bench.device()
    before = bench.values.value("edgewise_fleet_batch_seconds_count") or 0
    for _ in range(300):
        await bench.say(topics.telemetry("d1", "device"), SAMPLE, settle=False)
    await bench.settle()
    assert await rows(bench, SampleRow) == 300
    assert (bench.values.value("edgewise_fleet_batch_seconds_count") or 0) - before < 10


async def test_telemetry_waits_for_more_of_it_and_for_nothing_else(db: FleetDatabase) -> None:
    bench = Bench(db, gather_s=3600.0)
    bench.ingest.start()
    await bench.device()
    before = bench.values.value("edgewise_fleet_batch_seconds_count") or 0
    for _ in range(5):
        await bench.say(topics.telemetry("d1", "device"), SAMPLE, settle=False)
        await asyncio.sleep(0)
    assert await rows(bench, SampleRow) == 0
    await bench.say(topics.event("d1", "info"), Event(kind="x"))
    assert await rows(bench, SampleRow) == 5
    assert (bench.values.value("edgewise_fleet_batch_seconds_count") or 0) - before == 1
    await bench.ingest.stop()


async def test_nothing_is_acknowledged_before_it_is_on_disk(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The database refuses for a while: messages wait, and are stored and acknowledged when it is back."""
    await bench.device()
    real, refusals = FleetDatabase.write, [StorageError("no space"), StorageError("no space")]

    async def write(self: FleetDatabase, work: Any) -> Any:
        if refusals:
            assert bench.down.acknowledged == []
            raise refusals.pop()
        return await real(self, work)

    monkeypatch.setattr(FleetDatabase, "write", write)
    monkeypatch.setattr("edgewise.cloud.fleet.ingest._AGAIN_S", 0.0)
    id = await bench.say(topics.telemetry("d1", "device"), SAMPLE)
    assert (refusals, bench.down.acknowledged) == ([], [id])
    assert await rows(bench, SampleRow) == 1


async def test_a_device_that_is_not_enrolled_is_not_heard_and_not_acknowledged(bench: Bench) -> None:
    await bench.say(topics.telemetry("stranger", "device"), SAMPLE)
    assert bench.down.acknowledged == []
    assert bench.count("messages_dropped_total", reason="foreign") == 1
    assert await rows(bench, Arrival) == 0


@pytest.mark.parametrize(
    "payload",
    [b"{", b"\xff" * 40, b'{"v":1}', b'{"v":9,"id":"x"}', b"{" * 5000],
    ids=lambda payload: payload[:6].hex(),
)
async def test_malformed_messages_are_dropped_and_counted(bench: Bench, payload: bytes) -> None:
    await bench.device()
    bench.ingest.take(Incoming(topics.telemetry("d1", "device"), payload, False))
    await bench.say(topics.telemetry("d1", "device"), SAMPLE)
    assert bench.count("messages_dropped_total", reason="malformed") == 1
    assert await rows(bench, SampleRow) == 1


async def test_a_message_beyond_the_limit_is_dropped(bench: Bench) -> None:
    await bench.device()
    bench.ingest.take(Incoming(topics.event("d1", "info"), b"{" + b" " * MAX_MESSAGE + b"}", False))
    await bench.settle()
    assert bench.count("messages_dropped_total", reason="malformed") == 1


@pytest.mark.parametrize(
    "topic", ["f/1/d/d1/up/nothing/x", "f/1/d/d1/dn/cmd/ping", "f/1/d/a+b/up/live", "x", "f/1/d/d1/up/job/1"]
)
async def test_topics_of_others_are_not_read(bench: Bench, topic: str) -> None:
    bench.ingest.take(Incoming(topic, b"{}", False))
    assert bench.ingest.waiting_bytes == 0
    assert bench.count("messages_dropped_total", reason="malformed") == 1


async def test_what_cannot_be_understood_is_acknowledged_and_an_event(bench: Bench) -> None:
    """Its device would send it for ever, and all that waits behind it."""
    await bench.device()
    id = await bench.say(topics.telemetry("d1", "device"), {"group": "device", "samples": "none"})
    assert bench.down.acknowledged == [id]
    (event, _) = (await bench.registry.events(VIEWER, "d1")).items
    assert (event.kind, event.severity) == ("message.dropped", "warning")
    await bench.say(topics.telemetry("d1", "device"), {"group": "device", "samples": "again"})
    assert len((await bench.registry.events(VIEWER, "d1")).items) == 2  # told once in a while


async def test_a_message_that_the_database_itself_refuses_costs_only_itself(bench: Bench) -> None:
    """PostgreSQL stores no NUL in a text; SQLite does."""
    await bench.device()
    for kind in ("before", "with\0nul", "after"):
        await bench.say(topics.event("d1", "info"), Event(kind=kind), settle=False)
    await bench.settle()
    kinds = await bench.db.read(lambda session: set(session.scalars(select(EventRow.kind)).all()))
    assert {"before", "after"} <= kinds
    dropped = bench.count("messages_dropped_total", reason="failed")
    assert dropped == (0 if bench.db.sqlite else 1)
    assert len(bench.down.acknowledged) == 3  # it would be sent for ever


async def test_a_full_queue_drops_what_comes_again_and_keeps_presence(db: FleetDatabase) -> None:
    bench = Bench(db)
    bench.ingest._max_waiting = 4000
    await bench.db.write(lambda session: None)
    for _ in range(50):
        await bench.say(topics.telemetry("d1", "device"), SAMPLE, settle=False)
    assert bench.ingest.waiting_bytes <= 4000
    assert bench.count("messages_dropped_total", reason="busy") > 0
    waiting = bench.ingest.waiting_bytes
    await bench.say(topics.live("d1"), Live(state="online"), settle=False)
    assert bench.ingest.waiting_bytes > waiting
    for _ in range(50):
        await bench.say(topics.live("d1"), Live(state="online"), settle=False)
    assert bench.ingest.waiting_bytes <= 8000


async def test_a_handler_that_fails_costs_only_its_message(bench: Bench) -> None:
    def fail(session: Session, *_: object) -> list[Any]:
        raise RuntimeError("a fault")

    await bench.device()
    bench.ingest.on("evt", fail)
    await bench.say(topics.event("d1", "info"), Event(kind="x"), settle=False)
    id = await bench.say(topics.telemetry("d1", "device"), SAMPLE)
    assert bench.down.acknowledged == [id]
    assert await rows(bench, SampleRow) == 1


async def test_a_fault_after_the_commit_keeps_nobody_waiting(bench: Bench) -> None:
    def fail(*_: object) -> None:
        raise AttributeError("a fault")

    await bench.device()
    bench.ingest.on("evt", after=fail)
    first = await bench.say(topics.event("d1", "info"), Event(kind="x"))
    second = await bench.say(topics.event("d1", "info"), Event(kind="y"))
    assert bench.down.acknowledged == [first, second]


async def test_a_retained_message_that_is_cleared_says_nothing(bench: Bench) -> None:
    bench.ingest.take(Incoming(topics.live("d1"), b"", True))
    assert bench.ingest.waiting_bytes == 0
    assert bench.count("messages_dropped_total", reason="malformed") == 0


async def test_a_retired_device_is_foreign(bench: Bench) -> None:
    await bench.device()
    await bench.registry.retire(ADMIN, "d1")
    await bench.say(topics.telemetry("d1", "device"), SAMPLE)
    assert bench.down.acknowledged == []
    assert bench.down.forgotten == ["d1"]


async def test_a_database_that_is_killed_loses_nothing_and_doubles_nothing(
    postgres: PostgresServer, migrated_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("edgewise.cloud.fleet.ingest._AGAIN_S", 0.05)
    db = FleetDatabase(migrated_url)
    empty(db)
    bench = Bench(db)
    bench.ingest.start()
    await bench.device()
    ids = [await bench.say(topics.telemetry("d1", "device"), SAMPLE, settle=False) for _ in range(20)]
    postgres.kill()
    ids += [await bench.say(topics.telemetry("d1", "device"), SAMPLE, settle=False) for _ in range(20)]
    await until(lambda: "fleet_ingest_waits" in caplog.text)
    postgres.start()
    await bench.settle()
    assert set(bench.down.acknowledged) == set(ids)
    assert await rows(bench, SampleRow) == 40
    await bench.ingest.stop()
    db.close()
