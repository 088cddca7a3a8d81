"""The whole service: real brokers, scripted devices, a real process that is killed."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from edgewise.cloud.fleet.app import FleetService
from edgewise.cloud.fleet.people.local import add_user_locally
from edgewise.cloud.fleet.registry import add_device
from edgewise.core.settings import Settings, load_settings
from edgewise.wire import topics
from edgewise.wire.fleet import Live
from scripts.service import edgewise_command, edgewise_environment, free_port
from tests.cloud.fleet.bench import ADMIN, VIEWER
from tests.e2e.broker import BrokerProcess, iotcore_broker, mosquitto_broker
from tests.fakes.fleet_device import Act, FleetDevice, accept_only

LATE_S = 90.0  # whoever waits so long on a busy machine waits for nothing


@pytest.fixture(params=["iotcore", "mosquitto"])
def broker(request: pytest.FixtureRequest) -> Iterator[BrokerProcess]:
    with iotcore_broker() if request.param == "iotcore" else mosquitto_broker() as process:
        yield process


@pytest.fixture
def mosquitto() -> Iterator[BrokerProcess]:
    with mosquitto_broker() as process:
        yield process


def settings(home: Path, broker: BrokerProcess, **more: Any) -> Settings:
    values = {"home": str(home), "fleet.broker": "external", "mqtt.host": broker.host, "mqtt.port": broker.port}
    return load_settings(None, values | {"fleet.grace_s": 0.5} | more, environ={}).settings


@asynccontextmanager
async def running(loaded: Settings, *uids: str) -> AsyncIterator[FleetService]:
    """A service with devices that are enrolled."""
    service = FleetService(loaded)
    await service.start()
    try:
        for uid in uids:
            await service.db.write(lambda session, uid=uid: add_device(session, ADMIN.tenant, uid) and None)  # type: ignore[misc]
        yield service
    finally:
        await service.stop()


@asynccontextmanager
async def device(
    uid: str, broker: BrokerProcess, folder: Path, acts: dict[str, Act] | None = None
) -> AsyncIterator[FleetDevice]:
    made = FleetDevice(uid, broker.port, folder, acts=acts)
    await made.start()
    try:
        yield made
    finally:
        await made.stop()


async def eventually(check: Callable[[], Awaitable[object]]) -> None:
    """Returns once it holds; fails if it never does."""
    deadline = time.monotonic() + LATE_S
    while not await check():
        assert time.monotonic() < deadline, "it never came to pass"
        await asyncio.sleep(0.02)


async def state_is(service: FleetService, uid: str, state: str) -> None:
    async def check() -> bool:
        return (await service.fleet.registry.device(VIEWER, uid)).state == state

    await eventually(check)


async def ended(service: FleetService, id: str, state: str = "succeeded") -> None:
    async def check() -> bool:
        return (await service.fleet.commands.command(VIEWER, id)).state == state

    await eventually(check)


async def holds(condition: Callable[[], object]) -> None:
    async def check() -> object:
        return condition()

    await eventually(check)


async def test_a_device_from_birth_to_farewell(broker: BrokerProcess, tmp_path: Path) -> None:
    async with running(settings(tmp_path, broker), "d1") as service, device("d1", broker, tmp_path) as one:
        await state_is(service, "d1", "online")
        (ping,) = await service.fleet.commands.send(ADMIN, ["d1"], "ping")
        await ended(service, ping.id)
        await service.fleet.shadows.desire(ADMIN, "d1", "config", {"log.level": "debug"})

        async def applied() -> bool:
            return (await service.fleet.shadows.shadow(VIEWER, "d1", "config")).in_sync

        await eventually(applied)
        await one.telemetry({"temperature_c": 50.0})
        await one.event("odd", "something")
        (logs,) = await service.fleet.commands.send(ADMIN, ["d1"], "logs")
        await ended(service, logs.id)
        await one.log_part(logs.id, 0, ("a", "b"), last=True)
        await holds(lambda: not one.outbox)  # all is acknowledged
        assert await service.fleet.commands.log(VIEWER, logs.id) == ["a", "b"]
        detail = await service.fleet.registry.device(VIEWER, "d1")
        assert (detail.version, detail.gauges) == ("1.0.0", {"temperature_c": 50.0})
        assert one.retained == []  # F27
        await holds(lambda: service.registry_of_metrics.value("edgewise_fleet_broker_connected") == 1)
        await one.stop("restart", expected_s=1e6)
        await state_is(service, "d1", "offline-expected")


async def test_a_cut_link_is_offline_after_the_grace_and_a_short_one_never(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    loaded = settings(tmp_path, broker)
    async with running(loaded, "d1") as service, device("d1", broker, tmp_path) as one:
        await state_is(service, "d1", "online")
        await one.cut()
        await state_is(service, "d1", "offline")
        (command,) = await service.fleet.commands.send(ADMIN, ["d1"], "ping")
        await service.fleet.shadows.desire(ADMIN, "d1", "config", {"a": 1})  # F14: while it is away
        assert (await service.fleet.commands.command(VIEWER, command.id)).state == "queued"
        await one.start()
        await ended(service, command.id)
        await holds(lambda: one.documents.get("config") is not None)
        assert one.worked == [command.id]
        await state_is(service, "d1", "online")


async def test_the_fleet_says_that_it_is_there_and_its_will_that_it_is_not(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    """F29: both are retained, so that a device that comes later knows too."""
    async with device("d1", broker, tmp_path) as early:
        async with running(settings(tmp_path, broker), "d1") as service:
            await holds(lambda: early.hosts[-1:] == ["online"])
            async with device("d2", broker, tmp_path) as late:
                await holds(lambda: late.hosts[-1:] == ["online"])
            service.link.connection.end("killed (test)")
            await holds(lambda: "offline" in early.hosts and early.hosts[-1] == "online")
        await holds(lambda: early.hosts[-1] == "offline")
        async with device("d3", broker, tmp_path) as later:
            await holds(lambda: later.hosts[-1:] == ["offline"])


async def test_a_fleet_with_its_own_broker_needs_nothing_else(tmp_path: Path) -> None:
    port = free_port()
    loaded = load_settings(None, {"home": str(tmp_path), "mqtt.port": port}, environ={}).settings
    for _ in range(2):  # and starts again where it was
        async with running(loaded) as service:
            if not await service.fleet.registry.uids(VIEWER, ""):
                await service.db.write(lambda session: add_device(session, ADMIN.tenant, "d1") and None)
            one = await FleetDevice("d1", port, tmp_path).start()
            (command,) = await service.fleet.commands.send(ADMIN, ["d1"], "ping")
            await ended(service, command.id)
            await state_is(service, "d1", "online")

            async def ready() -> bool:
                return await service.trouble() is None

            await eventually(ready)
            await one.stop()


async def test_another_broker_under_a_running_fleet_and_everything_converges(
    mosquitto: BrokerProcess, tmp_path: Path
) -> None:
    """The broker loses all that it knew: sessions, retained documents, what was queued."""
    loaded = settings(tmp_path, mosquitto)
    async with running(loaded, "d1", "d2") as service, device("d1", mosquitto, tmp_path) as one:
        await state_is(service, "d1", "online")
        mosquitto.kill()
        await holds(lambda: not service.link.connected)
        await service.fleet.shadows.desire(ADMIN, "d1", "config", {"a": 1})
        (command,) = await service.fleet.commands.send(ADMIN, ["d1"], "ping")
        for path in mosquitto.folder.glob("*.db"):
            path.unlink()
        mosquitto.start()
        await ended(service, command.id)
        await holds(lambda: one.documents.get("config") is not None)
        await state_is(service, "d1", "online")
        assert one.worked == [command.id]


async def test_what_a_flood_of_foreign_messages_costs_is_counted(broker: BrokerProcess, tmp_path: Path) -> None:
    async with running(settings(tmp_path, broker), "d1") as service, device("nobody", broker, tmp_path) as stranger:
        for _ in range(50):
            await stranger.say(topics.live("nobody"), Live(state="online"))
        async with device("d1", broker, tmp_path):
            await state_is(service, "d1", "online")
        value = service.registry_of_metrics.value
        await holds(lambda: (value("edgewise_fleet_messages_dropped_total", {"reason": "foreign"}) or 0) >= 50)


# --- a process that is killed ---------------------------------------------------------------------------------------------------


@contextmanager
def served(home: Path, broker: BrokerProcess, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """`edgewise fleet serve`, which somebody ends in the block or this does."""
    more = {
        "EDGEWISE_FLEET__BROKER": "external",
        "EDGEWISE_MQTT__HOST": broker.host,
        "EDGEWISE_MQTT__PORT": str(broker.port),
        "EDGEWISE_FLEET__PORT": str(port),
    }
    with (home / "serve.log").open("ab") as log:
        process = subprocess.Popen(
            edgewise_command("fleet", "serve"), env=edgewise_environment(home, more), stdout=log, stderr=log
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(30)


async def ready(client: httpx.AsyncClient) -> None:
    async def check() -> bool:
        with contextlib.suppress(httpx.HTTPError):
            return (await client.get("/readyz")).status_code == 200
        return False

    await eventually(check)


async def test_a_service_that_is_killed_loses_no_command_and_does_none_twice(
    mosquitto: BrokerProcess, tmp_path: Path
) -> None:
    loaded = settings(tmp_path, mosquitto)
    async with running(loaded, "d1"):
        pass
    await add_user_locally(loaded, "ada", "a long enough password", "admin")
    port = free_port()
    sent: dict[str, str] = {}
    async with (
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=30) as client,
        device("d1", mosquitto, tmp_path, {"model.pull": accept_only}) as one,
    ):
        with served(tmp_path, mosquitto, port) as process:
            await ready(client)
            body: dict[str, Any] = {"name": "ada", "password": "a long enough password", "cookie": False}
            login = await client.post("/fleet/v1/login", json=body)
            client.headers["authorization"] = f"Bearer {login.json()['token']}"
            for op in ("ping", "ping", "ping", "model.pull"):
                answer = await client.post("/fleet/v1/commands", json={"uids": ["d1"], "op": op})
                assert answer.status_code == 202, answer.text
                sent[answer.json()[0]["id"]] = op
            await one.telemetry({"x": 1.0})
            process.kill()
            process.wait(30)
        await one.telemetry({"x": 2.0})
        with served(tmp_path, mosquitto, port) as process:
            await ready(client)
            for id, op in sent.items():
                if op == "model.pull":
                    await holds(lambda id=id: id in one.open)  # type: ignore[misc]
                    await one.ack(id, "succeeded")
            await holds(lambda: len(set(one.worked)) == len(sent))

            async def all_ended() -> bool:
                page = (await client.get("/fleet/v1/commands", params={"state": "succeeded"})).json()
                return {item["id"] for item in page["items"]} == set(sent)

            await eventually(all_ended)
            await holds(lambda: not one.outbox)
            points = (await client.get("/fleet/v1/devices/d1/telemetry/x", params={"since": time.time() - 3600})).json()
            assert sorted(point["mean"] for point in points["points"]) == [1.0, 2.0]
            process.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(process.wait, 60) == 0
        assert sorted(one.worked) == sorted(sent)  # each once
