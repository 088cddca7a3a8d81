"""A real device service that is killed, told to restart, given settings that break it, and started without any network."""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from edgewise.wire.fleet import ENDED, Ack
from scripts.service import DeviceService, free_port
from tests.e2e.broker import BrokerProcess
from tests.e2e.service import import_tiny, new_home, suite_limits
from tests.edge.agent.fleet import FleetDouble, until

RESTART_CODE = 75
KILLS = 2


class Supervised:
    """A device service that is started again as its unit would: not after an exit code of 0, 2 or 4."""

    def __init__(self, home: Path, broker: BrokerProcess, uid: str, **settings: str) -> None:
        chosen = {
            "MQTT__HOST": broker.host,
            "MQTT__PORT": str(broker.port),
            "MQTT__UID": uid,
            "DRAIN_S": "2",
            **settings,
        }
        environment = {**suite_limits(), **{f"EDGEWISE_{name}": value for name, value in chosen.items()}}
        self.service = DeviceService(home, ["--model", "tiny"], environment=environment, port=free_port())
        self.codes: list[int] = []
        self.on = True
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Supervised:
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        self.on = False
        self.service.terminate()
        assert self._task is not None
        await self._task

    async def ready(self) -> None:
        for _ in range(1200):
            if self.service._process is not None and await asyncio.to_thread(self.service.ready):
                return
            await asyncio.sleep(0.05)
        raise AssertionError(self.service.log_tail())

    def kill(self) -> None:
        """The service and its engine at once, as a power cut would."""
        family = self.service.children()
        self.service.process.send_signal(signal.SIGKILL)
        for process in family:
            process.kill()

    async def _run(self) -> None:
        while self.on:
            self.service.start()
            code = await asyncio.to_thread(self.service.process.wait)
            self.codes.append(code)
            if code in (0, 2, 4):
                return


@pytest.fixture
def home() -> Iterator[Path]:
    with ExitStack() as stack:
        made = stack.enter_context(new_home(starter=False))
        import_tiny(made)
        yield made


@pytest.fixture
async def fleet(one_broker: BrokerProcess, uid: str, tmp_path: Path) -> AsyncIterator[FleetDouble]:
    async with FleetDouble(one_broker, uid, tmp_path) as double:
        yield double


async def test_over_kills_no_command_is_lost_and_none_done_twice(
    home: Path, one_broker: BrokerProcess, fleet: FleetDouble, uid: str
) -> None:
    """Each accepted command has one end, whenever the service is killed; the fleet sends again what was not accepted."""
    rng = random.Random(11)
    ids: dict[str, tuple[str, dict[str, Any]]] = {}
    async with Supervised(home, one_broker, uid) as device:
        await device.ready()
        for _ in range(KILLS):
            for _ in range(3):
                ids[await fleet.command("ping")] = ("ping", {})
                args: dict[str, Any] = {"prompt": "hello", "max_tokens": rng.randrange(1, 40)}
                ids[await fleet.command("infer", **args)] = ("infer", args)
                ids[await fleet.command("model.load", name="tiny")] = ("model.load", {"name": "tiny"})
            first = next(iter([*ids][-9:]))
            await until(lambda first=first: fleet.acks(first), "something was accepted")  # type: ignore[misc]
            await asyncio.sleep(rng.random() * 0.5)  # somewhere in the middle of it
            device.kill()
            count = len(device.codes)
            await until(lambda count=count: len(device.codes) > count, "it is gone")  # type: ignore[misc]
        await device.ready()
        for id, (op, args) in ids.items():
            if not fleet.acks(id):
                await fleet.command(op, id=id, **args)
        for id in ids:
            await fleet.end(id, 120)
    assert device.codes[:-1] == [-signal.SIGKILL] * KILLS
    for id, (op, _) in ids.items():
        ends = [one.read(Ack) for one in fleet.of(f"ack/{id}") if one.read(Ack).state in ENDED]
        assert len({end.model_dump_json() for end in ends}) == 1, (op, ends)
        begun = [ack.state for ack in fleet.acks(id)].count("running")
        allowed = {"succeeded"} if op != "infer" else {"succeeded", "failed"}
        assert ends[0].state in allowed, (op, ends[0], begun)
        if ends[0].state == "failed":
            assert (ends[0].code, ends[0].retryable) == ("interrupted", True)


async def test_restart_succeeds_after_the_next_start_has_answered(
    home: Path, one_broker: BrokerProcess, fleet: FleetDouble, uid: str
) -> None:
    """F05, F23; also if the service is killed while it comes up."""
    async with Supervised(home, one_broker, uid) as device:
        await device.ready()
        id = await fleet.command("restart", reason="test")
        await until(lambda: device.codes, "it ends")
        device.kill()
        end = await fleet.end(id, 120)
        assert end.state == "succeeded", end
        assert end.result is not None
        assert end.result["answered"] is True
        assert end.result["before"]["started"] != end.result["started"]
    assert device.codes[0] == RESTART_CODE
    assert device.codes[-1] == 0


async def test_settings_that_keep_the_service_from_starting_are_given_up(
    home: Path, one_broker: BrokerProcess, fleet: FleetDouble, uid: str
) -> None:
    """F09: the device comes back with what was good, and says what was wrong; nobody has to go there."""
    async with Supervised(home, one_broker, uid) as device:
        await device.ready()
        await fleet.desire("policy", 1, {"restart": "auto"})
        await fleet.desire("config", 1, {"engine.kv_memory_bytes": 100})
        told = await until(
            lambda: (found := fleet.reported("config")) and found.state == "refused" and found, "it is refused", 120
        )
        assert (told.seen, told.applied) == (1, 0)
        assert "engine.kv_memory_bytes" in told.reason
        assert device.codes == [RESTART_CODE, RESTART_CODE]  # told to; then because it could not start
        await device.ready()
        await fleet.desire("config", 2, {"limits.keepalive_s": 33.0})
        told = await until(
            lambda: (found := fleet.reported("config")) and found.applied == 2 and found, "the next is applied", 120
        )
        assert told.document == {"limits.keepalive_s": 33.0}


async def test_without_a_network_it_serves_in_its_normal_time(home: Path, uid: str, tmp_path: Path) -> None:
    """F17: the broker's address does not answer (RFC 5737 keeps it for documentation)."""
    nowhere = BrokerProcess("nowhere", [], tmp_path, "192.0.2.1", 1)
    async with Supervised(home, nowhere, uid) as device:
        await device.ready()
        body = {"model": "tiny", "prompt": "a", "max_tokens": 2}
        answer = await asyncio.to_thread(httpx.post, f"{device.service.url}/v1/completions", json=body, timeout=60)
        assert answer.status_code == 200
    assert device.codes == [0]
