"""The governor on hardware that heats up and cools down by script, around a real engine process with a tiny model."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from edgewise.api.app import create_app
from edgewise.api.deps import ApiDependencies
from edgewise.core.clock import FakeClock, SystemClock
from edgewise.core.settings_fleet import AgentSettings
from edgewise.edge.governor.governor import MEASURES, GovernedPower, Governor
from edgewise.edge.governor.levels import DWELL_S, Level
from edgewise.edge.hardware.watch import HardwareWatch
from edgewise.edge.placement.protocol import PowerState
from edgewise.engine.client import EngineClient
from edgewise.engine.config import EngineConfig
from edgewise.engine.request import GenerateRequest, SamplingParams, TokenChunk
from edgewise.engine.restart import RestartRules
from edgewise.engine.stream import RequestStream
from edgewise.engine.timings import Timings
from edgewise.models.tiny import local_files, make_tiny_model
from edgewise.pipeline.model import Models
from tests.fakes.hardware.scripted import ScriptedHardware
from tests.fakes.serving import fake_model

CONTEXT = 32_768  # so long that no answer ends while a test looks on
COOL, HOT = {"temperature_c": 50.0}, {"temperature_c": 90.0}


async def until(met: Callable[[], bool | Awaitable[bool]]) -> None:
    """Bounded by the test's own time limit."""
    while True:
        answer = met()
        if answer if isinstance(answer, bool) else await answer:
            return
        await asyncio.sleep(0.01)


@dataclass
class Device:
    """A governor with a watch that reads all the time; `clock` is the governor's."""

    limit: Callable[[float, float], None] | None = None
    settings: AgentSettings = field(default_factory=AgentSettings)
    hardware: ScriptedHardware = field(default_factory=lambda: ScriptedHardware(**COOL))
    clock: FakeClock = field(default_factory=FakeClock)

    def __post_init__(self) -> None:
        self.deps = ApiDependencies(models=Models([fake_model()]), clock=self.clock, limit_engines=self.limit)
        self.watch = HardwareWatch(lambda: self.hardware, SystemClock(), every_s=0.01)
        self.governor = Governor(self.settings, self.deps, self.watch)

    async def __aenter__(self) -> Device:
        self.watch.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.watch.stop()
        self.deps.state.close()

    async def reach(self, level: Level, **reading: Any) -> None:
        """With this reading from now on, until the governor is at a level; time passes by as much as that needs."""
        self.hardware.set(**reading)
        while self.governor.level != level:
            await self.looked()
            self.clock.advance(DWELL_S + 1)

    async def looked(self) -> None:
        """Returns when a reading was begun, and taken, since."""
        asked = self.hardware.asked
        await until(lambda: self.hardware.asked > asked + 1)

    @property
    def app(self) -> FastAPI:
        return create_app(self.deps, self.governor.routers)

    async def get(self, path: str) -> Any:
        transport = httpx.ASGITransport(self.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            return (await client.get(path)).json()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model") / "tiny", context=CONTEXT)


@pytest.fixture
async def engine(model: Path) -> AsyncIterator[EngineClient]:
    config = EngineConfig(model=local_files(model), device="cpu", threads=1, max_running=4, kv_memory_bytes=96 * 2**20)
    quick = RestartRules(first_s=0.01, longest_s=0.05, give_up_after=1000, most_in_window=1000, slow_s=0.2)
    client = EngineClient(config, timings=Timings(restart=quick))
    await client.start()
    await client.wait_ready(120)
    yield client
    await client.stop()


async def ask(engine: EngineClient, name: str) -> RequestStream[TokenChunk]:
    sampling = SamplingParams(max_tokens=CONTEXT - 100, seed=1)
    return await engine.submit(GenerateRequest(id=name, prompt=(5, 6, 7), sampling=sampling))


async def test_the_batch_of_a_real_engine_shrinks_and_grows_and_loses_nothing(engine: EngineClient) -> None:
    async def batch(running: int, waiting: int) -> None:
        async def met() -> bool:
            stats = await engine.stats()
            return (stats.running, stats.waiting) == (running, waiting)

        await until(met)

    async with Device(engine.limit) as device:
        streams = [await ask(engine, f"r{number}") for number in range(7)]  # one that is dropped is cancelled
        await batch(4, 3)
        await device.reach(Level.CRITICAL, **HOT)
        streams.append(await ask(engine, "late"))  # comes after the limit: whoever was running then still is
        await batch(4, 4)
        for stream in streams[:3]:
            await stream.aclose()
        await batch(1, 4)  # nobody takes the places of those that left
        assert engine.pid is not None
        os.kill(engine.pid, signal.SIGKILL)
        await streams[3].aclose()
        await batch(1, 3)  # a new engine knows the limit before the requests
        await device.reach(Level.NORMAL, **COOL)
        await batch(4, 0)
        for stream in streams[4:]:
            assert (await stream.__anext__()).offset == 0
        assert (await engine.stats()).preemptions == 0


async def test_each_level_has_its_measures_and_is_told(tmp_path: Path) -> None:
    limits: list[tuple[float, float]] = []
    async with Device(lambda share, pace: limits.append((share, pace))) as device:
        for level, reading in ((Level.WARM, 80.0), (Level.HOT, 83.0), (Level.CRITICAL, 86.0)):
            await device.reach(level, temperature_c=reading)
            assert limits[-1] == (MEASURES[level].share, MEASURES[level].pace)
            assert device.deps.pressure.reading.level == level
        await device.reach(Level.NORMAL, **COOL)
        assert limits[-1] == (1.0, 1.0)
        assert device.deps.pressure.reading.level == 0
        told = [(event.kind, event.fields["level"]) for event in device.deps.events.since()]
        assert told == [
            ("governor_slows", "warm"),
            ("governor_slows", "hot"),
            ("governor_slows", "critical"),
            ("governor_eases", "hot"),
            ("governor_eases", "warm"),
            ("governor_eases", "normal"),
        ]


async def test_level_and_reason_are_shown_where_people_look() -> None:
    async with Device() as device:
        await device.reach(Level.HOT, temperature_c=60.0, throttled=True, reasons=("over-current",), power_w=30.0)
        governor = {"level": "hot", "reason": "the hardware slows itself down (over-current)"}
        ready = await device.get("/readyz")
        assert ready["governor"] == governor
        assert ready["pressure"] == {"level": 2, "reason": governor["reason"]}
        shown = await device.get("/edgewise/v1/hardware")
        assert shown["governor"] == governor
        assert (shown["readings"]["power_w"], shown["readings"]["reasons"]) == (30.0, ["over-current"])
        assert shown["joules"] > 0
        assert device.deps.metrics.registry.value("edgewise_governor_level") == 2.0


async def test_switched_off_it_only_shows_what_is_measured() -> None:
    limits: list[tuple[float, float]] = []
    settings = AgentSettings(governor=False)
    async with Device(lambda share, pace: limits.append((share, pace)), settings, ScriptedHardware(**HOT)) as device:
        await until(lambda: device.hardware.asked > 3)
        assert (device.governor.level, limits, device.deps.events.since()) == (Level.NORMAL, [], [])
        assert (await device.get("/readyz"))["governor"] == {"level": "off", "reason": "agent.governor is false"}
        assert (await device.get("/edgewise/v1/hardware"))["readings"]["temperature_c"] == 90.0
        assert device.deps.metrics.registry.value("edgewise_governor_level") is None


async def test_placement_is_told_the_newest_reading_and_what_a_second_here_counts_while_it_is_hot() -> None:
    async with Device(hardware=ScriptedHardware(**COOL, on_battery=True, charge=0.5, power_mode="15W")) as device:
        power = GovernedPower(device.governor)
        assert power.read() == PowerState()
        await device.looked()
        cool = PowerState(hottest_c=50.0, on_battery=True, charge=0.5, profile="15W")
        assert power.read() == cool
        await device.reach(Level.CRITICAL, **HOT, margin_c=-1.0)
        assert power.read() == replace(cool, hottest_c=90.0, margin_c=-1.0, cost=8.0)


async def test_a_reading_that_fails_is_not_the_last_one() -> None:
    async with Device() as device:
        await until(lambda: device.hardware.asked > 1)
        real = device.hardware.read
        failed = asyncio.Event()

        def broken() -> Any:
            device.hardware.read = real  # type: ignore[method-assign]
            failed.set()
            raise OSError("a driver that went away")

        device.hardware.read = broken  # type: ignore[method-assign]
        await until(failed.is_set)
        await device.reach(Level.CRITICAL, **HOT)
