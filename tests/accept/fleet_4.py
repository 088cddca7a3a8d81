"""A rollout of a model that answers garbage stops at its first stage and is undone; one of a good model passes.

One device is real: a device service whose `model.trial` runs the candidate beside the model in use, in its own engines, on what
it was asked lately. The good model is the same weights under another name, the bad one other random weights. The others are
simulated, and answer `model.trial` as such devices would. The bad model is rolled out twice: with simulated devices in the first
stage, and with the real one. The good one then goes to both kinds.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from edgewise.bench.fleet.device import Behaviour
from edgewise.models.store import Store
from edgewise.models.tiny import make_tiny_model
from tests.accept.fleet_world import RealDevice, World, device_home, world
from tests.accept.line import Line, Verdict, main, progress

FIRST = 4  # devices of the first stage, in which the real one is
GOOD, BAD = "good-model", "bad-model"
ASKED = ("the quick brown fox", "a list of colours", "once upon a time", "seven days")
SAME = 0.95  # at least; sums in another order decide some close draws
SPEED = 0.05  # of two tiny models on a busy machine nothing can be said by their speed


@dataclass
class Rolled:
    """The rollouts, and what is wrong.

    Attributes:
        bad: Judged by simulated devices.
        measured: Of the bad model too, judged by the real device.
    """

    bad: dict[str, Any] = field(default_factory=dict)
    measured: dict[str, Any] = field(default_factory=dict)
    good: dict[str, Any] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)

    @property
    def measured_agreement(self) -> float:
        """Of the bad model with the one in use, on the real device."""
        return max((float(one["checks"].get("agreement", -1.0)) for one in self.measured["devices"]), default=-1.0)

    def check(self, holds: bool, what: str) -> None:
        if not holds:
            self.wrong.append(what)


def install(home: Path) -> dict[str, str]:
    """Both models beside the one in use; digest by name."""
    store = Store(home / "models")
    store.import_path(home / "tiny-source", GOOD)
    store.import_path(make_tiny_model(home / "bad-source", seed=4711), BAD)
    return {name: store.manifest(name).digest for name in (GOOD, BAD)}


def ask(device: RealDevice) -> None:
    """Leave inputs that a trial can use."""
    for prompt in ASKED:
        body = {"model": "tiny", "prompt": prompt, "max_tokens": 8}
        httpx.post(f"{device.service.url}/v1/completions", json=body, timeout=60).raise_for_status()


def plan(*first: str) -> dict[str, Any]:
    """These devices first, then everybody."""
    some = " OR ".join(f"uid:{uid}" for uid in first)
    times = {"bake_s": 1, "deadline_s": 150}
    return {"stages": [{"query": some, **times}, {"percent": 100, **times}], "behaviour": {"speed": SPEED}}


async def roll(fleet: World, name: str, digests: dict[str, str], stages: dict[str, Any]) -> dict[str, Any]:
    document = {"models": [{"name": name, "digest": digests[name]}]}
    done = await fleet.roll_out(name, document, stages)
    progress(f"{name}: {done['state']} ({done['reason'] or 'no reason'})")
    return done


def of(rollout: dict[str, Any], uid: str) -> dict[str, Any]:
    found: dict[str, Any] = next(one for one in rollout["devices"] if one["uid"] == uid)
    return found


async def served(device: RealDevice) -> set[str]:
    """Names of the models that the real device has loaded."""
    shown = await asyncio.to_thread(httpx.get, f"{device.service.url}/edgewise/v1/models", timeout=60)
    return {one["name"] for one in shown.raise_for_status().json()["models"] if one["state"] == "loaded"}


async def rollouts(count: int) -> Rolled:
    rolled = Rolled()
    with device_home() as home:
        digests = install(home)
        async with world() as fleet:
            device = await fleet.real(home)
            async with device:
                await fleet.add(*(Behaviour() for _ in range(count)))
                await fleet.online(count + 1)
                await asyncio.to_thread(ask, device)
                simulated = [one.uid for one in fleet.devices[: FIRST - 1]]
                rolled.bad = await roll(fleet, BAD, digests, plan(*simulated))
                await judge_bad(rolled, rolled.bad, fleet, device)
                rolled.measured = await roll(fleet, BAD, digests, plan(device.uid))
                await judge_bad(rolled, rolled.measured, fleet, device)
                judge_measured(rolled, device)
                rolled.good = await roll(fleet, GOOD, digests, plan(device.uid, *simulated))
                await judge_good(rolled, fleet, device, count)
    return rolled


async def judge_bad(rolled: Rolled, bad: dict[str, Any], fleet: World, device: RealDevice) -> None:
    check = rolled.check
    check(bad["state"] == "rolled-back", f"the bad rollout is {bad['state']}")
    check("Stage 1" in bad["reason"], f"it stopped by: {bad['reason']}")
    later = [one for one in bad["devices"] if one["stage"] > 0 and one["state"] not in ("waiting", "left")]
    check(not later, f"it went beyond stage one: {later}")
    holders = [one.uid for one in fleet.devices if BAD in one.models]
    check(not holders, f"still there at {holders}")
    check(await served(device) == {"tiny"}, f"the real device serves {await served(device)}")


def judge_measured(rolled: Rolled, device: RealDevice) -> None:
    mine = of(rolled.measured, device.uid)
    rolled.check(mine["stage"] == 0, f"the real device was in stage {mine['stage'] + 1}")
    rolled.check(mine["state"] == "failed", f"the real device is {mine['state']}: {mine['reason']}")
    rolled.check(mine["checks"].get("agreement", 1.0) < 0.6, f"the real device measured {mine['checks']}")


async def judge_good(rolled: Rolled, fleet: World, device: RealDevice, count: int) -> None:
    good, check = rolled.good, rolled.check
    check(good["state"] == "succeeded", f"the good rollout is {good['state']}: {good['reason']}")
    check(good["counts"] == {"succeeded": count + 1}, f"it came to {good['counts']}")
    mine = of(good, device.uid)
    check(mine["checks"].get("agreement", 0.0) >= SAME, f"the real device measured {mine['checks']}: {mine['reason']}")
    check(mine["checks"].get("own", True) is True, "the trial ran on built-in inputs, not on those of the device")
    check(all(GOOD in one.models for one in fleet.devices), "not all simulated devices have it")
    check(GOOD in await served(device), "the real device does not serve it")


def measure(count: int) -> Verdict:
    """`count` simulated devices beside the real one."""
    rolled = asyncio.run(rollouts(count))
    figure = (
        f"1 real and {count} simulated devices: bad model {rolled.bad['state']} and {rolled.measured['state']}, "
        f"the real device measured an agreement of {rolled.measured_agreement:.2f}, "
        f"good model {rolled.good['state']} on {rolled.good['counts'].get('succeeded', 0)}"
    )
    return Verdict(figure=figure, passed=not rolled.wrong, details={"wrong": rolled.wrong})


LINE = Line(
    number=4,
    title="A bad model stops at stage one and is rolled back without a hand on it; a good one passes",
    bar="rolled back, succeeded",
    count=20,
    small=5,
    measure=measure,
)

if __name__ == "__main__":
    main(LINE, "tests.accept.fleet_4")
