"""The broker is swapped under a running fleet, at the same address: everything converges, without a hand on it.

Each trial ends the broker and puts another one there that knows nothing: of another make (iotcore, mosquitto), or mosquitto with
an empty folder. While there is none, a setting is changed and a command is sent to each device, one real and some simulated. Then
all devices must be shown as online, all commands done once, all settings in force, and what is desired retained for whoever
comes next.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager

from edgewise.bench.fleet.device import Behaviour
from edgewise.wire import topics
from edgewise.wire.envelope import decode
from edgewise.wire.fleet import Desired
from edgewise.wire.mqtt.connection import Broker, Connection, Incoming, Subscription
from scripts.service import free_port
from tests.accept.fleet_world import LATE_S, RealDevice, World, device_home, until, world
from tests.accept.line import Line, NotRun, Verdict, main, progress
from tests.e2e.broker import BrokerProcess, iotcore_broker, mosquitto_broker, mosquitto_path

BAR_S = 60.0
SIMULATED = 5
ORDER = ("iotcore", "mosquitto", "mosquitto")  # each trial goes on to the next one, around


def broker_at(port: int, turn: int) -> AbstractContextManager[BrokerProcess]:
    """A new broker; its folder is empty."""
    return iotcore_broker(port) if ORDER[turn % len(ORDER)] == "iotcore" else mosquitto_broker(port=port)


class Place:
    """The address where a broker is, whichever."""

    def __init__(self, stack: ExitStack) -> None:
        self.port = free_port()
        self.turn = 0
        self._stack = stack
        self.broker = stack.enter_context(self._next())

    @contextmanager
    def _next(self) -> Iterator[BrokerProcess]:
        with broker_at(self.port, self.turn) as broker:
            yield broker

    def end(self) -> None:
        self._stack.close()

    def replace(self) -> None:
        self.turn += 1
        self.broker = self._stack.enter_context(self._next())


async def retained(port: int) -> dict[str, int]:
    """Generation of the settings that the broker keeps, by device."""
    found: dict[str, int] = {}

    def heard(incoming: Incoming) -> None:
        if incoming.payload:
            found[topics.parse(incoming.topic).uid] = decode(incoming.payload).read(Desired).gen

    connection = Connection(Broker(host="127.0.0.1", port=port, uid="onlooker"), heard)
    await connection.open()
    try:
        await connection.subscribe([Subscription("f/1/d/+/dn/des/config")])
        await asyncio.sleep(0.5)
    finally:
        await connection.close()
    return found


async def trial(fleet: World, uids: list[str], place: Place, number: int) -> tuple[float, list[str]]:
    """Seconds until all had converged after the new broker stood, and what is wrong then."""
    await asyncio.to_thread(place.end)
    gens, sent = {}, {}
    for uid in uids:
        document = {"agent.telemetry_s": 20.0 + number}
        gens[uid] = (await fleet.call("PUT", f"devices/{uid}/shadows/config", json={"document": document}))["gen"]
        sent[uid] = await fleet.command(uid, "ping", key=f"{number}")
    await asyncio.to_thread(place.replace)
    began = time.monotonic()

    async def applied() -> bool:
        shadows = [await fleet.call("GET", f"devices/{uid}/shadows/config") for uid in uids]
        return all(one["applied"] == gens[one["uid"]] for one in shadows)

    async def kept() -> bool:
        return await retained(place.port) == gens

    await fleet.online(len(uids), LATE_S)
    states = {uid: (await fleet.ended(id))["state"] for uid, id in sent.items()}
    await until(applied, "the settings are in force")
    await until(kept, "what is desired is retained")
    await fleet.online(len(uids), LATE_S)
    seconds = time.monotonic() - began
    wrong = [f"{uid}: ping {state}" for uid, state in states.items() if state != "succeeded"]
    times = {one.uid: one.tally.effects.get(sent[one.uid], 0) for one in fleet.devices}
    wrong += [f"{uid}: done {done} times" for uid, done in times.items() if done != 1]
    return seconds, wrong


async def swaps(count: int) -> tuple[list[float], list[str]]:
    times: list[float] = []
    wrong: list[str] = []
    with ExitStack() as stack, device_home() as home:
        place = Place(stack)
        async with world(broker=place.broker) as fleet:
            device: RealDevice = await fleet.real(home)
            async with device:
                await fleet.add(*(Behaviour() for _ in range(SIMULATED)))
                uids = [device.uid, *(one.uid for one in fleet.devices)]
                await fleet.online(len(uids))
                for number in range(count):
                    seconds, found = await trial(fleet, uids, place, number)
                    times.append(seconds)
                    wrong += found
                    progress(f"{number + 1} of {count}: {ORDER[place.turn % len(ORDER)]}, {seconds:.1f} s")
    return times, wrong


def measure(count: int) -> Verdict:
    """`count` swaps."""
    if mosquitto_path() is None:
        raise NotRun("mosquitto is not installed")
    times, wrong = asyncio.run(swaps(count))
    figure = f"{len(times)} brokers swapped under {1 + SIMULATED} devices: converged after {max(times):.1f} s at most"
    correct = not wrong and len(times) == count
    details = {"seconds": times, "wrong": wrong}
    return Verdict(figure=figure, passed=correct and max(times) <= BAR_S, correct=correct, details=details)


LINE = Line(
    number=6,
    title="Another broker under a running fleet: presence, what is desired and open commands are as they were",
    bar="60 s",
    count=9,
    small=2,
    measure=measure,
)

if __name__ == "__main__":
    main(LINE, "tests.accept.fleet_6")
