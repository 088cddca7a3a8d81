"""Rollouts on a running fleet service with simulated devices: a real broker, a real database, and kills in between."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.orm import Session

from edgewise.bench.fleet.device import Behaviour, SimulatedDevice
from edgewise.bench.machines import free_port
from edgewise.cloud.fleet import views
from edgewise.cloud.fleet.actor import Actor
from edgewise.cloud.fleet.app import FleetService
from edgewise.cloud.fleet.db.tables import FIRST_TENANT, Device
from edgewise.cloud.fleet.rollouts.runner import RolloutRunner
from edgewise.core.errors import Conflict, InvalidRequest, NotPermitted
from edgewise.core.settings import Settings
from edgewise.wire.mqtt.connection import Broker

ME = Actor(tenant=FIRST_TENANT, name="me", role="operator")
OTHER = Actor(tenant=FIRST_TENANT, name="other", role="admin")
GOOD = {"models": [{"name": "good", "digest": "sha256:" + "a" * 64}]}
BAD = {"models": [{"name": "bad-one", "digest": "sha256:" + "b" * 64}]}
QUICK = {
    "stages": [{"percent": 20, "bake_s": 0.5, "deadline_s": 60}, {"percent": 100, "bake_s": 0.5, "deadline_s": 60}]
}


@dataclass
class World:
    """A fleet service and its devices; the service can be stopped and started on the same database."""

    home: Path
    port: int
    service: FleetService
    devices: list[SimulatedDevice] = field(default_factory=list)

    async def add(self, count: int, **behaviour: Any) -> None:
        uids = [f"sim-{len(self.devices) + index}" for index in range(count)]

        def enrol(session: Session) -> None:
            for uid in uids:
                session.add(Device(uid=uid, tenant_id=FIRST_TENANT, name=uid, folded=uid, created_at=0.0))

        await self.service.db.write(enrol)
        for uid in uids:
            broker = Broker(host="127.0.0.1", port=self.port, uid=uid)
            device = SimulatedDevice(broker, behaviour=Behaviour(**behaviour), period_s=0)
            device.start()
            self.devices.append(device)

    async def online(self) -> None:
        await until(self._online)

    async def _online(self) -> bool:
        return (await self.service.fleet.registry.counts(ME)).get("online", 0) == len(self.devices)

    async def rollout(self, document: dict[str, Any], shadow: Any = "models", plan: Any = QUICK, **fields: Any) -> str:
        made = await self.service.fleet.rollouts.create(ME, "it", shadow, document, "", plan, start=True, **fields)
        return made.id

    async def ended(self, rollout: str, *states: str) -> views.RolloutView:
        async def over() -> bool:
            return (await self.service.fleet.rollouts.rollout(ME, rollout)).state in states

        await until(over)
        return await self.service.fleet.rollouts.rollout(ME, rollout)

    async def restart(self) -> None:
        await self.service.stop()
        self.service = await started(self.home, self.port)


def settings(home: Path, port: int) -> Settings:
    return Settings.model_validate(
        {"home": home, "mqtt": {"host": "127.0.0.1", "port": port}, "fleet": {"grace_s": 0.5}}
    )


async def started(home: Path, port: int) -> FleetService:
    """A fleet service that looks at its rollouts often."""
    service = FleetService(settings(home, port))
    for runner in service.runners:
        if isinstance(runner, RolloutRunner):
            runner._period_s = 0.2
    await service.start()
    return service


async def until(there: Callable[[], Any], seconds: float = 60.0) -> None:
    for _ in range(int(seconds / 0.1)):
        if await there():
            return
        await asyncio.sleep(0.1)
    raise AssertionError("it does not come about")


@asynccontextmanager
async def world() -> AsyncIterator[World]:
    home = Path(tempfile.mkdtemp(prefix="fleet-"))
    port = free_port()
    made = World(home, port, await started(home, port))
    try:
        yield made
    finally:
        for device in made.devices:
            await device.stop()
        await made.service.stop()
        shutil.rmtree(home)


def states(rollout: views.RolloutView, stage: int | None = None) -> Sequence[str]:
    return [one.state for one in rollout.devices if stage is None or one.stage == stage]


async def test_a_good_model_reaches_everybody_and_a_bad_one_stops_at_stage_one_and_leaves_nothing() -> None:
    async with world() as w:
        await w.add(10)
        await w.online()
        done = await w.ended(await w.rollout(GOOD), "succeeded", "failed", "rolled-back")
        assert (done.state, set(states(done))) == ("succeeded", {"succeeded"})
        assert all("good" in device.models for device in w.devices)
        assert [one.stage for one in done.devices].count(0) == 2
        assert done.devices[0].checks["agreement"] == 0.97

        over = await w.ended(await w.rollout(BAD), "succeeded", "failed", "rolled-back")
        assert over.state == "rolled-back"
        assert "Stage 1" in over.reason
        assert "failed" in states(over, 0)
        assert set(states(over, 1)) == {"left"} or set(states(over, 1)) == {"waiting"}
        assert not any("bad-one" in device.models for device in w.devices)
        actions = [entry.action for entry in (await w.service.fleet.audit.entries(ME)).items]
        assert actions.count("rollout.turn") >= 3


async def test_what_was_changed_before_a_failure_is_changed_back() -> None:
    """The stage fails while one of its devices has the new document already: the devices differ in what they answer."""
    async with world() as w:
        await w.add(3)
        await w.add(3, garbage=("good",))
        await w.online()
        plan = {"stages": [{"percent": 100, "bake_s": 600, "deadline_s": 600}], "max_failed": 0.4}
        rollout = await w.rollout(GOOD, plan=plan)

        over = await w.ended(rollout, "rolled-back")
        assert "3 of 6" in over.reason
        assert not any("good" in device.models for device in w.devices)


async def test_configuration_is_merged_and_a_rollout_survives_restarts_of_the_service() -> None:
    async with world() as w:
        await w.add(5)
        await w.online()
        before = {"placement.policy": "prefer-local"}
        for device in w.devices:
            await w.service.fleet.shadows.desire(ME, device.uid, "config", before)
        rollout = await w.rollout({"limits.keepalive_s": 5}, "config")
        for _ in range(3):
            await asyncio.sleep(0.4)
            await w.restart()
        assert (await w.ended(rollout, "succeeded", "failed", "rolled-back")).state == "succeeded"
        for device in w.devices:
            shadow = await w.service.fleet.shadows.shadow(ME, device.uid, "config")
            assert shadow.desired == {**before, "limits.keepalive_s": 5}
            assert device.tally.applied["config"] == 2  # what was there, and the rollout: not once more

        await w.service.fleet.rollouts.act(OTHER, rollout, "roll-back")
        assert (await w.ended(rollout, "rolled-back")).state == "rolled-back"
        assert (await w.service.fleet.shadows.shadow(ME, w.devices[0].uid, "config")).desired == before


async def test_people_let_it_begin_pause_it_and_end_it() -> None:
    async with world() as w:
        await w.add(2)
        await w.online()
        rollouts = w.service.fleet.rollouts
        rollout = await w.rollout(GOOD, plan={**QUICK, "approval": True})
        with pytest.raises(NotPermitted, match="other than its author"):
            await rollouts.act(ME, rollout, "approve")
        assert (await rollouts.act(OTHER, rollout, "approve")).approved_by == "other"
        await rollouts.act(ME, rollout, "pause")
        with pytest.raises(Conflict):
            await rollouts.act(ME, rollout, "pause")
        await rollouts.act(ME, rollout, "resume")
        assert (await w.ended(rollout, "succeeded")).state == "succeeded"
        with pytest.raises(Conflict):
            await rollouts.act(ME, rollout, "cancel")
        bads: list[dict[str, Any]] = [
            {"query": "state:nowhere("},
            {"query": "name:none-such"},
            {"document": {}},
            {"name": ""},
        ]
        for bad in bads:
            asked: dict[str, Any] = {"name": "x", "document": GOOD, "query": "", **bad}
            with pytest.raises(InvalidRequest):
                await rollouts.create(ME, asked["name"], "models", asked["document"], asked["query"], QUICK)
        with pytest.raises(InvalidRequest, match="unsigned"):
            await rollouts.create(ME, "x", "software", {"version": "2"}, "", QUICK)


async def test_devices_that_are_away_are_missing_and_take_it_when_they_come_back() -> None:
    async with world() as w:
        await w.add(5)
        await w.online()
        away = w.devices[0]
        away.kill()

        async def gone() -> bool:
            return (await w.service.fleet.registry.device(ME, away.uid)).state == "offline"

        await until(gone)
        plan = {"stages": [{"percent": 100, "bake_s": 0.2, "deadline_s": 12}], "max_missing": 0.5}
        rollout = await w.rollout(GOOD, plan=plan)
        done = await w.ended(rollout, "succeeded", "failed", "rolled-back")
        assert (done.state, done.counts) == ("succeeded", {"succeeded": 4, "missing": 1})
        away.start()

        async def late() -> bool:
            return (await w.service.fleet.rollouts.rollout(ME, rollout)).counts == {"succeeded": 5}

        await until(late)
        assert "good" in away.models
