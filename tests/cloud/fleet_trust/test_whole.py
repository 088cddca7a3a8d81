"""Fleet service, mosquitto and devices together, as they are set up for devices elsewhere: certificates everywhere."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from fastapi import FastAPI

from edgewise.cloud.fleet.api.app import add_api
from edgewise.cloud.fleet.app import FleetService
from edgewise.cloud.fleet.enrolment.authority import CERTIFICATE_FILE, Authority
from edgewise.cloud.fleet.enrolment.authority import FOLDER as CA_FOLDER
from edgewise.cloud.fleet.enrolment.broker_config import FOLDER, write_broker_config
from edgewise.core.settings import Settings, load_settings
from edgewise.edge.enrol.enrolment import enrol
from scripts.service import free_port
from tests.cloud.fleet.bench import ADMIN
from tests.cloud.fleet.test_service import ended, eventually, state_is
from tests.cloud.fleet_trust.device_process import certified_device
from tests.cloud.fleet_trust.doubles import served
from tests.e2e.broker import BrokerProcess, _running, mosquitto_path
from tests.e2e.clock import shifted


@dataclass
class World:
    service: FleetService
    url: str
    ca: Path
    broker: BrokerProcess

    async def code(self, uid: str | None = None) -> str:
        view = await self.service.fleet.enrolment.add_code(ADMIN, auto_accept=True, uid=uid)
        assert view.code is not None
        return view.code


@pytest.fixture
def set_up(tmp_path: Path) -> Iterator[tuple[Settings, BrokerProcess]]:
    """What `edgewise fleet broker-config` writes, with the broker running."""
    program = mosquitto_path()
    if program is None:
        pytest.skip("mosquitto is not installed")
    home, port, local = tmp_path / "fleet", free_port(), free_port()
    written = write_broker_config(
        home / FOLDER, Authority(home / CA_FOLDER), ["127.0.0.1"], port=port, local_port=local
    )
    written.conf.write_text(written.conf.read_text() + "user root\n")  # of whoever runs the test
    values = {
        "home": str(home),
        "fleet.broker": "external",
        "fleet.broker_url": f"mqtts://127.0.0.1:{port}",
        "fleet.grace_s": 0.5,
        "mqtt.host": "127.0.0.1",
        "mqtt.port": local,
        "mqtt.password_file": str(written.passwords["fleet"]),
    }
    process = BrokerProcess("mosquitto", [program, "-c", str(written.conf)], tmp_path, "127.0.0.1", local)
    for running in _running(process):
        yield load_settings(None, values, environ={}).settings, running


@pytest.fixture
async def world(set_up: tuple[Settings, BrokerProcess]) -> AsyncIterator[World]:
    settings, broker = set_up
    service = FleetService(settings)
    await service.start()
    app = FastAPI()
    add_api(app, service.fleet, settings.fleet)
    pem = settings.home / "server.pem"
    pem.write_text("".join(service.enrolment.authority.server_certificate(["127.0.0.1"], 365)))
    try:
        async with served(app, ssl_certfile=str(pem)) as url:
            yield World(service, url, settings.home / CA_FOLDER / CERTIFICATE_FILE, broker)
    finally:
        await service.stop()


async def test_a_device_is_enrolled_shut_out_and_taken_back(world: World, tmp_path: Path) -> None:
    """What a person does with a device that is stolen and comes back, and what the device sees of it."""
    home = tmp_path / "device"
    membership = await enrol(home, world.url, await world.code(), ca_file=world.ca)
    device = await certified_device(home).start()
    try:
        await state_is(world.service, membership.uid, "online")
        (ping,) = await world.service.fleet.commands.send(ADMIN, [membership.uid], "ping")
        await ended(world.service, ping.id)
        (key,) = await world.service.fleet.enrolment.keys(ADMIN, uid=membership.uid)
        await world.service.fleet.enrolment.revoke(ADMIN, key.id)
        world.broker.stop()  # all connections end, and the lists are read
        world.broker.start()
        await state_is(world.service, membership.uid, "offline")
    finally:
        await device.stop()
    assert not device.link.connected
    again = await enrol(home, world.url, await world.code(membership.uid), ca_file=world.ca, again=True)
    assert again.uid == membership.uid
    world.broker.stop()
    world.broker.start()
    device = await certified_device(home).start()
    try:
        await state_is(world.service, membership.uid, "online")
    finally:
        await device.stop()


@pytest.mark.parametrize("years", [-5, 5])
async def test_a_device_whose_clock_is_years_off(world: World, tmp_path: Path, years: int) -> None:
    """The whole process lives in another year: it enrols over HTTPS, connects over TLS and does what it is told."""
    with device_process(tmp_path, years, world.url, await world.code(), world.ca) as process:
        year, uid, last = await asyncio.to_thread(_said, process)
        assert last == "connected"
        await state_is(world.service, uid, "online")
        (ping,) = await world.service.fleet.commands.send(ADMIN, [uid], "ping", ttl_s=60.0)
        await ended(world.service, ping.id)
        await world.service.fleet.shadows.desire(ADMIN, uid, "config", {"log.level": "debug"})

        async def applied() -> bool:
            return (await world.service.fleet.shadows.shadow(ADMIN, uid, "config")).in_sync

        await eventually(applied)
    detail = await world.service.fleet.registry.device(ADMIN, uid)
    assert abs(int(year) - _year(detail.created_at)) in (abs(years) - 1, abs(years))


def _said(process: subprocess.Popen[str]) -> list[str]:
    assert process.stdout is not None
    return [process.stdout.readline().strip() for _ in range(3)]


def _year(moment: float) -> int:
    return time.gmtime(moment).tm_year


@contextmanager
def device_process(folder: Path, years: int, url: str, code: str, ca: Path) -> Iterator[subprocess.Popen[str]]:
    command = [
        sys.executable,
        "-m",
        "tests.cloud.fleet_trust.device_process",
        str(folder / "device"),
        url,
        code,
        str(ca),
    ]
    process = subprocess.Popen(command, env=shifted(folder, years), stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
