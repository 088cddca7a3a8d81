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
import time
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text

from edgewise.bench.fleet.device import Behaviour
from edgewise.cloud.fleet.db.database import sqlite_url
from edgewise.edge.agent.schema import open_agent
from scripts.service import ServiceError
from tests.accept.fleet_world import ENDED, LATE_S, RealDevice, World, device_home, until, world
from tests.accept.line import Line, NotRun, Verdict, main, progress
from tests.e2e.postgres import PostgresServer, postgres_server

SIMULATED = 6
SMALL = 6
"""Up to so many rounds run on one database: PostgreSQL, or SQLite where it is not installed."""
OPEN = ("queued", "sent", "accepted", "running")
PEOPLE = 4  # who send commands at once
IN_FLIGHT = 16
"""Commands of each of them that have not ended: a machine that is slow gets no more work than it does."""
PERIOD_S = 0.5
PAUSE_S = (0.05, 1.0)
UNREADY = 0.25
"""Share of the kills that do not wait for what was killed before: a machine on which parts die faster than they come back would
only ever start them."""
ROUNDS_S = (240.0, 9.0)  # the rounds on one database may take so long, and so much longer for each
SETTLE_S = 600.0
TOLD = 30  # faults that are told one by one
TROUBLE = (
    TimeoutError,
    AssertionError,
    ServiceError,
    RuntimeError,
    OSError,
)  # of the line's own parts, told as a fault
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
    succeeded: int = 0  # commands, after the latest kill

    def __post_init__(self) -> None:
        self.rng = random.Random(17)

    @property
    def uids(self) -> list[str]:
        return [self.device.uid, *(one.uid for one in self.fleet.devices)]

    # --- traffic ---------------------------------------------------------------------------------------------------------

    async def command(self, first: int) -> None:
        """Commands, until there is no more traffic; each has a key, with which it is sent again when no answer came."""
        number, mine = first, set[str]()
        while self.on:
            await self._room(mine)
            uid = self.device.uid if number % 5 == 0 else self.rng.choice(self.uids)
            op, args = self.rng.choice([("ping", {}), ("infer", {"prompt": "hello", "max_tokens": 1 + number % 12})])
            key = f"key-{number}"
            id = await self.fleet.command(uid, op, key, **args)
            self.sent.commands[id] = (uid, op)
            mine.add(id)
            if number % 7 == 0 and await self.fleet.command(uid, op, key, **args) != id:
                self.sent.repeats.append(key)
            number += PEOPLE
            await asyncio.sleep(self.rng.uniform(0, 0.2))

    async def _room(self, mine: set[str]) -> None:
        """Until one more of these may be open, or there is no more traffic."""

        async def room() -> bool:
            for id in sorted(mine) if len(mine) >= IN_FLIGHT else ():
                if (await self.fleet.call("GET", f"commands/{id}"))["state"] in ENDED:
                    mine.discard(id)
            return len(mine) < IN_FLIGHT or not self.on

        await until(room, f"one of {IN_FLIGHT} commands ends")

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
        """So many rounds, or as many as there is time for."""
        limit = time.monotonic() + ROUNDS_S[0] + ROUNDS_S[1] * count
        people = [asyncio.create_task(self.command(first)) for first in range(PEOPLE)]
        traffic = [*people, asyncio.create_task(self.desire())]
        try:
            for number in range(count):
                if time.monotonic() > limit:
                    progress(f"time is over after {number} of {count} rounds")
                    break
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
        name, way = ways[self.killed.total() % len(ways)]  # when is chance, what by turns
        if self.rng.random() >= UNREADY:
            await until(self._goes_on, "a command succeeds after a kill")
            if name == "device":
                await self.device.ready()
        await asyncio.sleep(self.rng.uniform(*PAUSE_S))
        await asyncio.to_thread(way)
        self.killed[name] += 1
        self.rng.choice(self.fleet.devices).cut()
        if name == "fleet":
            await asyncio.to_thread(self.fleet.server.wait_ready)
        self.succeeded = await self._count("succeeded")

    async def _goes_on(self) -> bool:
        return await self._count("succeeded") > self.succeeded

    async def _count(self, state: str) -> int:
        """Commands in a state."""
        shown = await self.fleet.call("GET", "commands", params={"state": state, "limit": 1})
        return int(shown["total"])

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
        began = changed = time.monotonic()
        left: dict[str, int] = {}
        while (now_left := await self.left()) and time.monotonic() - began < SETTLE_S:
            if now_left != left:
                left, changed = now_left, time.monotonic()
            elif time.monotonic() - changed > LATE_S:
                break  # `faults` names what is not as it should be
            await asyncio.sleep(0.5)
        await asyncio.to_thread(self.device.service.stop)

    async def left(self) -> dict[str, int]:
        """What has not settled, with how much of it there is."""
        counts = {"devices away": len(self.uids) - (await self.fleet.call("GET", "devices/counts")).get("online", 0)}
        for state in OPEN:
            counts[f"commands {state}"] = await self._count(state)
        counts["rows of simulated devices"] = sum(device.waiting for device in self.fleet.devices)
        for uid, gen in self.sent.gens.items():
            shown = await self.fleet.call("GET", f"devices/{uid}/shadows/config")
            counts[f"settings of {uid}"] = int(not shown["applied"] == shown["gen"] == gen)
        return {what: count for what, count in counts.items() if count}


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
    wrong: list[str] = []
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
                try:
                    await state.under_traffic(count)
                    await state.settle()
                except TROUBLE as error:
                    wrong.append(f"{type(error).__name__}: {error}")
                    progress(wrong[-1])  # what comes next may fail too
            finally:
                if device.service.process.poll() is None:
                    device.kill()
            where = url or sqlite_url(fleet.home / "fleet.db")
            wrong += await faults(state, home, where)
            if wrong:
                further = [f"and {len(wrong) - TOLD} more"] if len(wrong) > TOLD else []
                wrong = [*wrong[:TOLD], *further, *picture(state, home, where)]
            return state.killed, len(state.sent.commands), wrong


async def faults(state: Drill, home: Path, url: str) -> list[str]:
    """What is wrong in the end."""
    wrong = [f"the key {key} is two commands" for key in state.sent.repeats]
    ends: dict[str, str] = {}
    bad: Counter[str] = Counter()
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
            bad[f"{op}: {shown['state']} {shown['code']} {shown['reason']}"] += 1
    wrong += [f"{times} times {what}" for what, times in bad.most_common()]
    for uid, gen in state.sent.gens.items():
        shown = await state.fleet.call("GET", f"devices/{uid}/shadows/config")
        if shown["applied"] != gen:
            wrong.append(f"{uid}: settings {shown['applied']} instead of {gen}")
    engine = create_engine(url)
    with engine.connect() as connection:  # one statement, so one moment: the device's last rows may just arrive
        told = connection.execute(
            text("SELECT id, -1 FROM arrivals UNION ALL SELECT uid, count(*) FROM samples GROUP BY uid")
        ).all()
    engine.dispose()
    arrived = {id for id, count in told if count < 0}
    samples: dict[str, int] = {uid: count for uid, count in told if count >= 0}
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


def picture(state: Drill, home: Path, url: str) -> list[str]:
    """Where everything stands: what somebody needs who was not there."""
    kind = dict.fromkeys(state.uids, "simulated") | {state.device.uid: "real"}
    engine = create_engine(url)
    with engine.connect() as connection:
        query = "SELECT uid, state, tries, count(*) FROM commands WHERE state IN :open GROUP BY uid, state, tries"
        open_there = connection.execute(text(query.replace(":open", repr(OPEN)))).all()
        devices = connection.execute(text("SELECT uid, state, ep, ended FROM devices")).all()
    engine.dispose()
    seen = [f"open: {kind[uid]} {uid}: {count} {was}, sent {tries} times" for uid, was, tries, count in open_there]
    seen += [f"{kind[uid]} {uid}: {was}, session {ep}{' ended' if ended else ''}" for uid, was, ep, ended in devices]
    seen += [repr(device) for device in state.fleet.devices]
    for table, column in (("commands", "state"), ("uplink", "class")):
        counted = select(home / "agent.db", f"SELECT {column}, count(*) FROM {table} GROUP BY {column}")
        seen.append(f"at the real device: {table}: {dict(counted)}")
    services = (state.fleet.server, state.device.service)
    return [*seen, *(line for service in services for line in complaints(service.log))]


def complaints(log: Path) -> list[str]:
    """The last warnings and errors of a log."""
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    bad = [line for line in lines if not line.startswith("{") or '"level":"info"' not in line]
    return [f"{log.name}: {line[:400]}" for line in bad[-8:]]


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
            try:
                some, sent, found = asyncio.run(rounds(share, database))
            except NotRun:
                raise
            except Exception:  # noqa: BLE001  # the line has a verdict whatever happens
                some, sent, found = Counter(), 0, [traceback.format_exc()[-3000:]]
            killed, commands, wrong = killed + some, commands + sent, wrong + found
    for one in wrong:
        progress(one)
    names = ", ".join(f"{name} {times}" for name, times in sorted(killed.items()))
    figure = f"{killed.total()} of {count} kills ({names}), {commands} commands: " + (
        f"wrong: {'; '.join(wrong[:3])}" if wrong else "0 lost, doubled or wrong"
    )
    details = {"wrong": wrong, "postgresql": server is not None}
    return Verdict(figure=figure, passed=not wrong and killed.total() == count, correct=not wrong, details=details)


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
