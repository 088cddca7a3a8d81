"""Device service, fleet service, broker and database are killed with SIGKILL at random points while commands, settings and
telemetry flow. No command that the fleet service has taken is lost or done twice, no telemetry lost or doubled.

The device service is killed with its engine, and again before it is ready if it so happens; links of simulated devices, which
make the volume, are cut besides. The real device's own record is written by triggers in its database, in the very transactions
that put a row into its outbox or begin or end a command, and compared with what the fleet's database has in the end. Half of the
rounds run on SQLite, half on PostgreSQL where it is installed; there the database is a process that is killed too.
"""

from __future__ import annotations

import asyncio
import random
import sqlite3
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text

from edgewise.bench.fleet.device import Behaviour
from edgewise.cloud.fleet.db.database import sqlite_url
from edgewise.edge.agent.schema import open_agent
from tests.accept.fleet_world import RealDevice, World, device_home, until, world
from tests.accept.line import Line, Verdict, main, progress
from tests.e2e.postgres import PostgresServer, postgres_server

SIMULATED = 6
SMALL = 6
"""Up to so many rounds run on one database: PostgreSQL, or SQLite where it is not installed."""
OPEN = ("queued", "sent", "accepted", "running")
PEOPLE = 4  # who send commands at once
PERIOD_S = 0.5
PAUSE_S = (0.05, 1.0)
RECORD = """
CREATE TABLE test_rows (id TEXT, samples INTEGER);
CREATE TABLE test_steps (id TEXT, op TEXT, step TEXT);
CREATE TRIGGER test_put AFTER INSERT ON uplink BEGIN
    INSERT INTO test_rows VALUES (NEW.id, COALESCE(json_array_length(NEW.body, '$.samples'), 0));
END;
CREATE TRIGGER test_begin AFTER UPDATE OF begun ON commands BEGIN
    INSERT INTO test_steps VALUES (NEW.id, NEW.op, 'begun');
END;
CREATE TRIGGER test_end AFTER UPDATE OF outcome ON commands WHEN OLD.outcome IS NULL OR OLD.state != NEW.state BEGIN
    INSERT INTO test_steps VALUES (NEW.id, NEW.op, NEW.state);
END;
"""


@dataclass
class Sent:
    """What the fleet service has taken.

    Attributes:
        commands: Device and operation by id.
        gens: Latest generation of the settings by device.
        repeats: Keys that came to another command when they were sent again.
    """

    commands: dict[str, tuple[str, str]] = field(default_factory=dict)
    gens: dict[str, int] = field(default_factory=dict)
    repeats: list[str] = field(default_factory=list)


@dataclass
class Drill:
    """All that can be killed, and what was."""

    fleet: World
    device: RealDevice
    database: PostgresServer | None
    sent: Sent = field(default_factory=Sent)
    killed: Counter[str] = field(default_factory=Counter)

    on: bool = True

    def __post_init__(self) -> None:
        self.rng = random.Random(17)

    @property
    def uids(self) -> list[str]:
        return [self.device.uid, *(one.uid for one in self.fleet.devices)]

    # --- traffic ---------------------------------------------------------------------------------------------------------

    async def command(self, first: int) -> None:
        """Commands, until there is no more traffic; each has a key, with which it is sent again when no answer came."""
        number = first
        while self.on:
            uid = self.device.uid if number % 5 == 0 else self.rng.choice(self.uids)
            op, args = self.rng.choice([("ping", {}), ("infer", {"prompt": "hello", "max_tokens": 1 + number % 12})])
            key = f"key-{number}"
            id = await self.fleet.command(uid, op, key, **args)
            self.sent.commands[id] = (uid, op)
            if number % 7 == 0 and await self.fleet.command(uid, op, key, **args) != id:
                self.sent.repeats.append(key)
            number += PEOPLE
            await asyncio.sleep(self.rng.uniform(0, 0.2))

    async def desire(self) -> None:
        """New settings, until there is no more traffic."""
        number = 0
        while self.on:
            uid = self.rng.choice(self.uids)
            document = {"agent.telemetry_s": PERIOD_S + number / 1e6}
            body = {"document": document}
            self.sent.gens[uid] = (await self.fleet.call("PUT", f"devices/{uid}/shadows/config", json=body))["gen"]
            number += 1
            await asyncio.sleep(self.rng.uniform(0, 1.0))

    async def under_traffic(self, count: int) -> None:
        """So many rounds."""
        people = [asyncio.create_task(self.command(first)) for first in range(PEOPLE)]
        traffic = [*people, asyncio.create_task(self.desire())]
        try:
            for number in range(count):
                await self.kill()
                if number % 10 == 9:
                    progress(f"{number + 1} of {count}, {len(self.sent.commands)} commands")
                for task in traffic:
                    if task.done():
                        task.result()
            self.on = False
            await asyncio.gather(*traffic)
        finally:
            for task in traffic:
                task.cancel()
            await asyncio.gather(*traffic, return_exceptions=True)

    # --- kills -----------------------------------------------------------------------------------------------------------

    async def kill(self) -> None:
        """One round: something is killed in the midst of it all, and started again."""
        ways: list[tuple[str, Callable[[], Any]]] = [
            *[("fleet", self._kill_fleet), ("broker", self._kill_broker), ("device", self._kill_device)],
            *([("database", self._kill_database)] if self.database is not None else []),
        ]
        await asyncio.sleep(self.rng.uniform(*PAUSE_S))
        name, way = ways[self.killed.total() % len(ways)]  # when is chance, what by turns
        await asyncio.to_thread(way)
        self.killed[name] += 1
        self.rng.choice(self.fleet.devices).cut()
        if name == "fleet":
            await asyncio.to_thread(self.fleet.server.wait_ready)

    def _kill_fleet(self) -> None:
        self.fleet.server.kill()
        self.fleet.server.start()

    def _kill_broker(self) -> None:
        self.fleet.broker.kill()
        self.fleet.broker.start()

    def _kill_device(self) -> None:
        self.device.kill()
        self.device.start()

    def _kill_database(self) -> None:
        assert self.database is not None
        self.database.kill()
        self.database.start()

    # --- the end ---------------------------------------------------------------------------------------------------------

    async def settle(self) -> None:
        """Nothing new; all that is on its way arrives."""
        for device in self.fleet.devices:
            device.quiet()
        await self.device.ready()
        await asyncio.to_thread(self.fleet.server.wait_ready)
        await self.fleet.online(len(self.uids))

        async def commands() -> bool:
            counts = [
                (await self.fleet.call("GET", "commands", params={"state": state, "limit": 1}))["total"]
                for state in OPEN
            ]
            return not any(counts)

        async def outboxes() -> bool:
            return not any(device.waiting for device in self.fleet.devices)

        async def settings() -> bool:
            shown = [await self.fleet.call("GET", f"devices/{uid}/shadows/config") for uid in self.sent.gens]
            return all(one["applied"] == one["gen"] == self.sent.gens[one["uid"]] for one in shown)

        with suppress(TimeoutError):  # `faults` names what is not as it should be
            await until(commands, "all commands have ended")
            await until(outboxes, "the outboxes of the simulated devices are empty")
            await until(settings, "the latest settings are in force")
        await asyncio.to_thread(self.device.service.stop)


async def record(home: Path) -> None:
    """Make the device's database, before its first start, with a record of its own."""
    database = open_agent(home / "agent.db")
    await database.run(lambda _: None)  # it is made at its first use
    database.close()
    with closing(sqlite3.connect(home / "agent.db", timeout=30)) as connection:
        connection.executescript(RECORD)


def select(path: Path, query: str) -> list[Any]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(query).fetchall()


async def rounds(count: int, database: PostgresServer | None) -> tuple[Counter[str], int, list[str]]:
    """What was killed how often, how many commands there were, and what is wrong."""
    url = None if database is None else database.url(database.create())
    with device_home() as home:
        async with world(database=url) as fleet:
            device = await fleet.real(home, EDGEWISE_AGENT__TELEMETRY_S=str(PERIOD_S), EDGEWISE_ENGINE__THREADS="1")
            await record(home)
            try:
                device.start()
                await device.ready()
                await fleet.add(*(Behaviour(duplicates=number == 0) for number in range(SIMULATED)), period_s=PERIOD_S)
                await fleet.online(SIMULATED + 1)
                state = Drill(fleet, device, database)
                await state.under_traffic(count)
                await state.settle()
            finally:
                if device.service.process.poll() is None:
                    device.kill()
            wrong = await faults(state, home, url or sqlite_url(fleet.home / "fleet.db"))
            return state.killed, len(state.sent.commands), wrong


async def faults(state: Drill, home: Path, url: str) -> list[str]:
    """What is wrong in the end."""
    wrong = [f"the key {key} is two commands" for key in state.sent.repeats]
    ends: dict[str, str] = {}
    for id, (_, op) in state.sent.commands.items():
        shown = await state.fleet.call("GET", f"commands/{id}")
        ends[id] = shown["state"]
        interrupted = (op, shown["state"], shown["code"], shown["retryable"]) == (
            "infer",
            "failed",
            "interrupted",
            True,
        )
        if shown["state"] != "succeeded" and not interrupted:
            wrong.append(f"{op}: {shown['state']} {shown['code']} {shown['reason']}")
    for uid, gen in state.sent.gens.items():
        shown = await state.fleet.call("GET", f"devices/{uid}/shadows/config")
        if shown["applied"] != gen:
            wrong.append(f"{uid}: settings {shown['applied']} instead of {gen}")
    engine = create_engine(url)
    with engine.connect() as connection:
        counted = connection.execute(text("SELECT uid, count(*) FROM samples GROUP BY uid"))
        samples: dict[str, int] = {row[0]: row[1] for row in counted}
        arrived = set(connection.execute(text("SELECT id FROM arrivals")).scalars())
    engine.dispose()
    for device in state.fleet.devices:
        mine = {id for id, (uid, _) in state.sent.commands.items() if uid == device.uid}
        done = Counter(device.tally.effects)
        wrong += [f"{device.uid}: {id} done {done[id]} times" for id in mine if done[id] != 1]
        wrong += [f"{device.uid}: {id}, which nobody has sent" for id in set(done) - mine]
        if samples.get(device.uid, 0) != device.tally.samples:
            wrong.append(f"{device.uid}: {samples.get(device.uid, 0)} of {device.tally.samples} samples")
    return wrong + real_faults(state, home, ends, samples.get(state.device.uid, 0), arrived)


def real_faults(state: Drill, home: Path, ends: dict[str, str], samples: int, arrived: set[str]) -> list[str]:
    """What is wrong with the real device, by its own record."""
    path = home / "agent.db"
    waiting = {id for (id,) in select(path, "SELECT id FROM uplink")}
    rows = dict(select(path, "SELECT id, samples FROM test_rows"))
    wrong = [f"row {id} is lost" for id in rows if id not in arrived and id not in waiting]
    steps = select(path, "SELECT id, op, step FROM test_steps")
    begun = Counter(id for id, op, step in steps if step == "begun" and op == "infer")
    ended = Counter(id for id, _, step in steps if step != "begun")
    last = {id: step for id, _, step in steps if step != "begun"}
    wrong += [f"infer {id} begun {times} times" for id, times in begun.items() if times > 1]
    for id, (uid, op) in state.sent.commands.items():
        if uid == state.device.uid and (ended[id], last.get(id)) != (1, ends[id]):
            wrong.append(f"{op} {id}: {ended[id]} ends at the device, {last.get(id)}; {ends[id]} at the fleet")
    told = sum(count for id, count in rows.items() if id in arrived)
    if samples != told:
        wrong.append(f"the real device: {samples} samples of {told} that were put into its outbox")
    return wrong


def measure(count: int) -> Verdict:
    """`count` kills."""
    killed: Counter[str] = Counter()
    wrong: list[str] = []
    commands = 0
    with ExitStack() as stack:
        server = None
        try:
            server = stack.enter_context(postgres_server())
        except pytest.skip.Exception:
            progress("PostgreSQL is not installed: SQLite alone")
        databases = [None] if server is None else [server] if count <= SMALL else [None, server]
        for number, database in enumerate(databases):
            share = (count + number) // len(databases)
            some, sent, found = asyncio.run(rounds(share, database))
            killed, commands, wrong = killed + some, commands + sent, wrong + found
    names = ", ".join(f"{name} {times}" for name, times in sorted(killed.items()))
    figure = f"{killed.total()} kills ({names}), {commands} commands: {len(wrong)} lost, doubled or wrong"
    passed = not wrong and killed.total() == count
    return Verdict(figure=figure, passed=passed, details={"wrong": wrong[:50], "postgresql": server is not None})


LINE = Line(
    number=2,
    title="Kills of device service, fleet service, broker and database at random points: commands and telemetry are whole",
    bar="0 lost, 0 doubled",
    count=200,
    small=SMALL,
    measure=measure,
)

if __name__ == "__main__":
    main(LINE, "tests.accept.fleet_2")
