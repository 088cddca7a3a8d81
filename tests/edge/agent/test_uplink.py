"""What waits for the fleet: until the fleet has it, within its bounds, over cuts, long absences and full disks."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edgewise.core.clock import FakeClock
from edgewise.edge.agent.moments import Moment, Moments
from edgewise.edge.agent.reserve import Reserve
from edgewise.edge.agent.schema import open_agent
from edgewise.edge.agent.uplink.budget import Budget
from edgewise.edge.agent.uplink.rows import CLASSES, MAX_THINNED, RowClass, Rows
from edgewise.wire.envelope import encode
from edgewise.wire.fleet import Ack, Event, HostLive, Sample, Sync, Telemetry
from tests.e2e.broker import BrokerProcess
from tests.edge.agent.device import Device, DeviceFactory
from tests.edge.agent.fleet import FleetDouble, until

YEAR_S = 366 * 86_400.0


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is unacknowledged is sent again soon."""
    monkeypatch.setattr("edgewise.edge.agent.uplink.sender.PAUSES_S", (0.1, 0.1))


async def depths(device: Device) -> dict[str, int]:
    return await device.agent._uplink.rows.depths()


async def empty(device: Device) -> None:
    for _ in range(500):
        if not await depths(device):
            return
        await asyncio.sleep(0.02)
    raise AssertionError(await depths(device))


# --- over real brokers ---------------------------------------------------------------------------------------------------------


async def test_an_end_waits_until_the_fleet_has_it(
    broker: BrokerProcess, fleet: FleetDouble, new_device: DeviceFactory
) -> None:
    """F08: the broker's acknowledgement is not the fleet's. Over cuts and starts the same row comes again, with the same id."""
    fleet.receive = False
    device = await new_device(broker)
    id = await fleet.command("ping")
    await fleet.end(id)

    def ids() -> list[str]:
        found = [envelope for envelope in fleet.of(f"ack/{id}") if envelope.read(Ack).state == "succeeded"]
        return [envelope.id for envelope in found]

    device.cut()
    await until(lambda: len(ids()) >= 2, "the end again, after a cut")
    await device.stop()
    count = len(ids())
    device = await new_device(broker)
    await until(lambda: len(ids()) > count, "the end again, after a start")
    assert len(set(ids())) == 1
    assert (await depths(device))["result"] == 1
    fleet.receive = True
    await fleet.acknowledge(ids()[0])
    await empty(device)


async def test_what_gathered_while_nobody_was_there_drains_and_the_gauges_agree(
    one_broker: BrokerProcess, new_device: DeviceFactory, uid: str, tmp_path: Path
) -> None:
    """F11: a day's worth of rows, more than any window holds."""
    nowhere = BrokerProcess("nowhere", [], one_broker.folder, "127.0.0.1", 1)
    device = await new_device(nowhere, connected=False)
    for number in range(300):
        await device.agent._uplink.rows.add("telemetry", f"f/1/d/{uid}/up/tel/device", batch(number))
    await device.agent._uplink.event("test", "info", "an event")
    assert await depths(device) == {"telemetry": 300, "alert": 1}
    await device.stop()
    async with FleetDouble(one_broker, uid, tmp_path) as fleet:
        device = await new_device(one_broker)
        await until(lambda: fleet.of("sync"))
        assert fleet.of("sync")[0].read(Sync).outbox["telemetry"] >= 300
        await empty(device)
        numbers = [one.read(Telemetry).samples[0].values.get("number") for one in fleet.of("tel")]
        assert [number for number in dict.fromkeys(numbers) if number is not None] == list(range(300))


def batch(number: float) -> Telemetry:
    return Telemetry(group="device", samples=(Sample(values={"number": number}),))


async def test_while_the_fleet_is_away_telemetry_waits_and_ends_are_told(fleet: FleetDouble, device: Device) -> None:
    try:
        await fleet.host("offline")
        await until(lambda: device.agent._uplink.sender.host_away)
        device.agent._telemetry.soon()
        await until(lambda: len(device.agent._telemetry._samples) > 0, "a sample is gathered")
        await device.agent._telemetry._flush()
        heard = len(fleet.of("tel"))
        assert (await fleet.does("ping")).state == "succeeded"
        await device.agent._uplink.event("test", "info", "an event")
        await until(lambda: fleet.of("evt"), "an event")
        assert len(fleet.of("tel")) == heard
        assert (await depths(device))["telemetry"] >= 1
        await fleet.host("online")
        await empty(device)
        assert len(fleet.of("tel")) > heard
    finally:
        await fleet.forget_host()


async def test_a_late_will_of_the_fleet_does_not_count(fleet: FleetDouble, device: Device) -> None:
    sender = device.agent._uplink.sender
    try:
        await fleet.send("f/1/host/live", HostLive(state="online"), retain=True)
        await until(lambda: sender.host is not None)
        old = fleet.link.sealer.seal(HostLive(state="offline")).model_copy(update={"ep": 0})
        await fleet.link.publish("f/1/host/live", encode(old))
        await fleet.does("ping")  # behind it
        assert not sender.host_away
    finally:
        await fleet.forget_host()


@pytest.mark.usefixtures("soon")
async def test_ages_are_said_anew_with_each_try(fleet: FleetDouble, device: Device) -> None:
    device.agent._uplink.sender._pauses_s = (0.1,)
    fleet.receive = False
    await device.agent._uplink.event("test", "info", "an event")
    await until(lambda: len(fleet.of("evt")) >= 3, "it is sent again")
    ages = [one.read(Event).age_ms for one in fleet.of("evt")]
    assert ages == sorted(ages)
    assert ages[-1] >= 100


async def test_with_nothing_acknowledged_only_a_window_is_repeated(fleet: FleetDouble, device: Device) -> None:
    """A broker whose fleet is gone for good, and never said so, does not get everything again and again."""
    fleet.receive = False
    device.agent._uplink.sender._pauses_s = (0.2,)
    for number in range(100):
        await device.agent._uplink.rows.add("telemetry", f"f/1/d/{fleet.uid}/up/tel/device", batch(number))
    device.agent._uplink.sender.wake()
    await until(lambda: len(fleet.of("tel")) > 80, "it is repeated")
    numbers = {one.read(Telemetry).samples[0].values.get("number") for one in fleet.of("tel")}
    assert len(numbers) <= 33


# --- bounds --------------------------------------------------------------------------------------------------------------------


@pytest.fixture
async def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def rows(clock: FakeClock) -> AsyncIterator[Rows]:
    database = open_agent(None)
    yield Rows(database, Moments(clock, "boot"), max_bytes=20_000)
    database.close()


def message(kind: RowClass, number: int) -> Any:
    if kind == "telemetry":
        return batch(number)
    return Ack(state="succeeded", result={"n": number}) if kind == "result" else Event(kind=f"k{number}")


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.sampled_from(CLASSES), st.integers(1, 40)), min_size=1, max_size=12))
async def test_results_are_never_dropped_and_all_else_stays_within_its_bound(kinds: list[tuple[RowClass, int]]) -> None:
    database = open_agent(None)
    rows = Rows(database, Moments(FakeClock(), "boot"), max_bytes=20_000)
    put = dict.fromkeys(CLASSES, 0)
    for kind, count in kinds:
        for _ in range(count):
            await rows.add(kind, "t", message(kind, put[kind]))
            put[kind] += 1
    there = await rows.depths()
    assert there.get("result", 0) == put["result"]
    total = await database.run(lambda connection: connection.execute("SELECT SUM(bytes) FROM uplink").fetchone()[0])
    results = "SELECT COALESCE(SUM(bytes), 0) FROM uplink WHERE class = 'result'"
    needed = await database.run(lambda connection: connection.execute(results).fetchone()[0])
    assert total <= max(20_000, needed + 400)
    assert rows.dropped == sum(put.values()) - sum(there.values())
    database.close()


async def test_telemetry_is_thinned_before_any_of_it_is_dropped(rows: Rows) -> None:
    """A long absence is still seen as a whole, more coarsely."""
    for number in range(150):
        await rows.add("telemetry", "t", batch(number))
    kept = [row.body["samples"][0]["values"]["number"] for row in await rows.next("telemetry", 0, 1000)]
    assert kept[0] <= 2**MAX_THINNED
    assert kept[-1] == 149
    assert max(b - a for a, b in itertools.pairwise(kept)) <= 2**MAX_THINNED


async def test_logs_go_before_alerts_and_the_oldest_first(rows: Rows) -> None:
    for number in range(40):
        await rows.add("alert", "t", message("alert", number))
        await rows.add("log", "t", message("log", number))
    for number in range(50):
        await rows.add("result", "t", message("result", number))
    there = await rows.depths()
    assert there["result"] == 50
    assert there["alert"] > there.get("log", 0)
    alerts = [row.body["kind"] for row in await rows.next("alert", 0, 1000)]
    assert alerts[-1] == "k39"


async def test_a_day_has_so_many_bytes_and_results_are_free(clock: FakeClock) -> None:
    database = open_agent(None)
    budget = Budget(database, Moments(clock, "boot"), 1000)
    budget.spend("telemetry", 850)
    assert budget.allows("telemetry", 50)
    assert not budget.allows("telemetry", 60)
    assert budget.allows("alert", 60)  # alerts have a share of their own
    assert not budget.allows("alert", 200)
    assert budget.allows("result", 10**9)
    await budget.save()
    after = Budget(database, Moments(clock, "boot"), 1000)
    await after.load()
    assert after.spent == 850
    clock.set(clock.time() + 5 * YEAR_S)  # somebody sets the clock: no day is over
    assert after.spent == 850
    clock.advance(86_400)
    assert after.allows("telemetry", 850)
    database.close()


def test_ages_hold_over_starts_reboots_and_clocks_that_are_set() -> None:
    clock = FakeClock()
    clock.advance(1000)
    moments = Moments(clock, "boot-1")
    then = moments.now()
    clock.advance(10)
    clock.set(clock.time() - 5 * YEAR_S)
    assert moments.age_s(then) == 10
    rebooted = FakeClock(then.wall_s + 3600)
    rebooted.advance(60)
    assert Moments(rebooted, "boot-2").age_s(then) == 3660
    wrong = FakeClock(0.0)  # a dead battery: 1970
    wrong.advance(60)
    assert Moments(wrong, "boot-2").age_s(then) == 60
    assert Moments(wrong, "boot-2").age_s(Moment("boot-2", 61.0, 0.0)) == 0


# --- the disk ------------------------------------------------------------------------------------------------------------------


async def test_a_full_disk_keeps_commands_going_and_heals(
    small_disk: Path, one_broker: BrokerProcess, uid: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F19: what may be lost gives way, a command is accepted all the same, and afterwards everything is as before."""
    monkeypatch.setattr("edgewise.edge.agent.reserve.RESERVE_BYTES", 100 * 1024)
    monkeypatch.setattr("edgewise.edge.agent.part._WATCH_S", 0.1)
    device = Device(one_broker, small_disk, uid)
    reserve = device.agent._uplink.reserve
    reserve._size = 100 * 1024
    device.start()
    async with FleetDouble(one_broker, uid, tmp_path) as fleet:
        try:
            await until(lambda: device.link.connected and reserve.held, "it runs, with a reserve")
            filler = small_disk / "filler"
            await asyncio.to_thread(fill, filler)
            for _ in range(40):
                end = await fleet.does("ping")
                assert end.state == "succeeded"
                if not reserve.held:
                    break
            assert not reserve.held, "the disk was not full enough for this test"
            await until(lambda: not device.agent._uplink.room, "telemetry has no room")
            filler.unlink()
            await until(lambda: reserve.held, "the reserve again")
            assert (await fleet.does("ping")).state == "succeeded"
        finally:
            await device.stop()


def fill(path: Path) -> None:
    """Until the disk takes no more."""
    with path.open("wb", buffering=0) as file:
        try:
            while file.write(b"x" * 4096):
                pass
        except OSError:
            return


async def test_the_reserve_is_not_taken_from_a_disk_that_is_nearly_full(small_disk: Path, rows: Rows) -> None:
    assert not await Reserve(small_disk / "reserve", rows).hold()
    assert await Reserve(small_disk / "reserve", rows, 64 * 1024).hold()
