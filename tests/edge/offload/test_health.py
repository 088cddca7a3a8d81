"""Which transport serves, what plans are told, and which events there are."""

from __future__ import annotations

import asyncio

import pytest

from edgewise.core.errors import LinkLost, NotAuthenticated
from edgewise.edge.offload.health import Health
from edgewise.wire.messages import CloudInfo
from tests.api.harness import until
from tests.edge.offload.double import FakeTransport

DOWN = 10**9


class Meter:
    """A test double that remembers round trips."""

    def __init__(self) -> None:
        self.trips: list[float] = []

    def round_trip(self, seconds: float, /) -> None:
        self.trips.append(seconds)

    def sent(self, count: int, seconds: float, /) -> None: ...

    def received(self, count: int, seconds: float, /) -> None: ...


def watch(*transports: FakeTransport) -> tuple[Health, list[str], Meter]:
    events: list[str] = []
    meter = Meter()
    return Health(transports, emit=lambda kind, message, **facts: events.append(kind), meter=meter), events, meter


def test_the_link_is_down_until_the_cloud_answers_and_told_once_each() -> None:
    async def run() -> list[str]:
        cloud = FakeTransport(losses=2)
        health, events, _ = watch(cloud)
        assert not health.state.up
        health.start()
        await health.wait_asked(60.0)
        await until(lambda: health.state.up)
        assert health.info is not None
        cloud.losses = DOWN
        health.lost("http", LinkLost("gone"))
        assert (health.state.up, health.state.why) == (False, "gone")
        await until(lambda: len(events) == 3)
        cloud.losses = 0
        health.back()
        await until(lambda: health.state.up)
        await health.stop()
        return events

    assert asyncio.run(run()) == ["cloud_down", "cloud_up", "cloud_down", "cloud_up"]


def test_a_connection_that_breaks_while_the_cloud_is_well_is_no_event() -> None:
    async def run() -> tuple[list[str], int]:
        health, events, meter = watch(FakeTransport())
        health.start()
        await until(lambda: health.state.up)
        health.lost("http", LinkLost("one connection"))
        await until(lambda: health.state.up)
        await health.stop()
        return events, len(meter.trips)

    assert asyncio.run(run()) == (["cloud_up"], 0)


def test_the_first_transport_that_answers_serves_and_the_preferred_one_comes_back() -> None:
    async def run() -> list[str]:
        http, mqtt = FakeTransport(losses=DOWN), FakeTransport(name="mqtt")
        health, events, _ = watch(http, mqtt)
        health.start()
        await until(lambda: health.state.up)
        assert health.transport() is mqtt
        http.losses = 0
        health.lost("mqtt", LinkLost("broker"))
        await until(lambda: health.transport() is http)
        health.lost("mqtt", LinkLost("an old stream of the other transport"))
        assert health.state.up
        await health.stop()
        return events

    assert asyncio.run(run()) == ["cloud_up", "cloud_up"]


def test_a_cloud_that_refuses_the_key_is_not_planned_with() -> None:
    class Refusing(FakeTransport):
        async def info(self) -> None:  # type: ignore[override]
            raise NotAuthenticated("Unknown key.")

    async def run() -> tuple[bool, str]:
        health, events, _ = watch(Refusing())
        health.start()
        await health.wait_asked(60.0)
        await until(lambda: events == ["cloud_down"])
        await health.stop()
        return health.state.up, health.state.why

    up, why = asyncio.run(run())
    assert not up
    assert "Unknown key." in why


async def test_a_refusal_is_logged_once_until_the_cloud_has_answered(caplog: pytest.LogCaptureFixture) -> None:
    class Choosy(FakeTransport):
        asked = 0
        refuses = True

        async def info(self) -> CloudInfo:
            self.asked += 1
            if self.refuses:
                raise NotAuthenticated("Unknown key.")
            return await super().info()

    cloud = Choosy()
    health, _, _ = watch(cloud)

    async def ask_again(times: int) -> None:
        for _ in range(times):
            before = cloud.asked
            health.lost("http", LinkLost("look at once"))
            await until(lambda before=before: cloud.asked > before)

    def told() -> int:
        return sum(record.message == "cloud_refuses" for record in caplog.records)

    health.start()
    await until(lambda: cloud.asked > 0)
    await ask_again(3)
    assert told() == 1
    cloud.refuses = False
    health.lost("http", LinkLost("look at once"))
    await until(lambda: health.state.up)
    cloud.refuses = True
    await ask_again(2)
    await health.stop()
    assert told() == 2


async def test_a_fault_of_ours_does_not_end_the_watch() -> None:
    class Broken(FakeTransport):
        faults = 2

        async def info(self) -> CloudInfo:
            if self.faults:
                self.faults -= 1
                raise RuntimeError("a fault of this program")
            return await super().info()

    health, events, _ = watch(Broken())
    health.start()
    await until(lambda: events == ["cloud_down"])
    assert "internal error (RuntimeError)" in (health.state.why or "")
    await until(lambda: health.state.up)
    await health.stop()
