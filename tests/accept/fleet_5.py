"""Devices whose clocks are five years off, ahead or behind, join a fleet, do what they are told, and take part in a rollout.

The fleet service has TLS, mosquitto has certificates, all of the fleet's own authority and of this year. `edgewise device enroll`
and then the device service, with its engine, run as processes to which every clock of the system is off, OpenSSL's too.
Simulated devices whose messages are dated so are in the same fleet, and one whose clock is right.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from contextlib import AsyncExitStack, ExitStack
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

import httpx

from edgewise.bench.fleet.device import Behaviour
from tests.accept.fleet_world import RealDevice, World, device_home, until, world
from tests.accept.line import Line, NotRun, Verdict, main, progress
from tests.e2e.clock import shifted

YEARS = 5
YEAR_S = 365 * 86_400.0
SIMULATED = (YEARS * YEAR_S, -YEARS * YEAR_S, 0.0)
PLAN = {"stages": [{"percent": 50, "bake_s": 1, "deadline_s": 150}, {"percent": 100, "bake_s": 1, "deadline_s": 150}]}
PERIOD = {"agent.telemetry_s": 1.0}


def years(number: int) -> int:
    """How far the clock of real device `number` is off."""
    return YEARS if number % 2 == 0 else -YEARS


def clock(folder: Path, off: int) -> dict[str, str]:
    """Variables of a process that lives in another year, besides those that it has anyway."""
    wanted = shifted(folder, off)
    return {name: wanted[name] for name in ("LD_PRELOAD", "EDGEWISE_TEST_CLOCK_OFFSET_S")}


async def commanded(fleet: World, device: RealDevice, off: int) -> list[str]:
    """What is wrong with one device after all that a fleet asks of it."""
    wrong: list[str] = []
    said = await asyncio.to_thread(httpx.get, f"{device.service.url}/healthz", timeout=60)
    there = (parsedate_to_datetime(said.headers["date"]).timestamp() - time.time()) / YEAR_S
    if abs(there - off) > 0.1:
        wrong.append(f"its clock is off by {there:.1f} years, not {off}")
    sent = {
        "ping": await fleet.command(device.uid, "ping"),
        "infer": await fleet.command(device.uid, "infer", prompt="hello", max_tokens=8, ignore_eos=True),
    }
    for op, id in sent.items():
        shown = await fleet.ended(id)
        if shown["state"] != "succeeded":
            wrong.append(f"{op}: {shown['state']} {shown['code']} {shown['reason']}")
    return wrong


async def measured(fleet: World, uid: str) -> list[str]:
    """Telemetry that the device takes after its new settings stands at this year's moments."""

    async def points() -> Any:
        since = {"since": time.time() - 20 * YEAR_S, "until": time.time() + 20 * YEAR_S}
        return (await fleet.call("GET", f"devices/{uid}/telemetry/memory_used", params=since))["points"]

    found = await until(points, f"{uid} sends telemetry")
    strange = [point["at"] for point in found if abs(point["at"] - time.time()) > 86_400]
    return [f"telemetry at {strange[0]}"] if strange else []


async def devices(count: int) -> tuple[str, list[str]]:
    """State of the rollout, and what is wrong."""
    wrong: list[str] = []
    with ExitStack() as homes, tempfile.TemporaryDirectory(prefix="edgewise-clock-") as folder:
        async with world(tls=True) as fleet, AsyncExitStack() as running:
            real: dict[str, RealDevice] = {}
            for number in range(count):
                home = homes.enter_context(device_home())
                device = await fleet.real(home, **clock(Path(folder), years(number)))
                real[device.uid] = await running.enter_async_context(device)
                progress(f"{number + 1} of {count} devices enrolled and ready, {years(number):+d} years")
            await fleet.add(*(Behaviour(clock_s=off) for off in SIMULATED))
            await fleet.online(count + len(SIMULATED))
            for number, device in enumerate(real.values()):
                wrong += [f"{years(number):+d} years: {what}" for what in await commanded(fleet, device, years(number))]
            done = await fleet.roll_out("often", PERIOD, PLAN, shadow="config")
            if (done["state"], done["counts"]) != ("succeeded", {"succeeded": count + len(SIMULATED)}):
                wrong.append(f"the rollout is {done['state']} ({done['reason']}): {done['counts']}")
            for uid in real:
                wrong += await measured(fleet, uid)
            return str(done["state"]), wrong


def measure(count: int) -> Verdict:
    """`count` device services, by turns ahead and behind."""
    if shutil.which("cc") is None and shutil.which("gcc") is None:
        raise NotRun("it needs a C compiler, for the library that sets a process's clock")
    state, wrong = asyncio.run(devices(count))
    figure = (
        f"{count} device services and {len(SIMULATED) - 1} simulated devices {YEARS} years off: enrolled, commanded, "
        f"rollout {state}; {len(wrong)} faults"
    )
    return Verdict(figure=figure, passed=not wrong, details={"wrong": wrong})


LINE = Line(
    number=5,
    title="A device's clock is five years off: enrolment, commands and rollouts work",
    bar="0 faults",
    count=4,
    small=1,
    measure=measure,
)

if __name__ == "__main__":
    main(LINE, "tests.accept.fleet_5")
