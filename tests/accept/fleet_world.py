"""A whole fleet for acceptance lines: broker and fleet service as processes, and devices that have enrolled there."""

from __future__ import annotations

import asyncio
import ssl
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import httpx
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from edgewise.bench.fleet.device import Behaviour, SimulatedDevice
from edgewise.cloud.fleet.enrolment.authority import CERTIFICATE_FILE, Authority
from edgewise.cloud.fleet.enrolment.authority import FOLDER as CA_FOLDER
from edgewise.cloud.fleet.enrolment.broker_config import FOLDER, BrokerConfig, write_broker_config
from edgewise.cloud.fleet.people.local import add_user_locally
from edgewise.core.settings import load_settings
from edgewise.core.tls_time import TimeFloor
from edgewise.edge.enrol.client import make_csr
from edgewise.edge.enrol.folder import EnrolmentFolder
from edgewise.wire.fleet import Enrolled
from edgewise.wire.mqtt.connection import Broker
from scripts.service import DeviceService, FleetServer, free_port
from tests.accept.line import NotRun
from tests.e2e.broker import BrokerProcess, mosquitto_path
from tests.e2e.service import edgewise, import_tiny, new_home, suite_limits

NAME, PASSWORD = "ada", "correct horse battery"
LATE_S = 180.0  # whoever waits so long on a busy machine waits for nothing
AWAY = (httpx.codes.SERVICE_UNAVAILABLE, httpx.codes.INSUFFICIENT_STORAGE)
ENDED = frozenset({"succeeded", "failed", "rejected", "expired", "cancelled", "superseded", "timed-out"})


async def until(condition: Callable[[], Awaitable[Any]], what: str, seconds: float = LATE_S) -> Any:
    """What the condition gives once it is true."""
    limit = time.monotonic() + seconds
    while not (found := await condition()):
        if time.monotonic() > limit:
            raise TimeoutError(f"it did not come true within {seconds:.0f} s that {what}")
        await asyncio.sleep(0.1)
    return found


@dataclass
class World:
    """Attributes:
    ca: Authority of the broker's certificate, and of the service's where it has one.
    http: As an admin.
    """

    home: Path
    broker: BrokerProcess
    server: FleetServer
    ca: Path
    http: httpx.AsyncClient
    devices: list[SimulatedDevice] = field(default_factory=list)

    # --- what people do --------------------------------------------------------------------------------------------------

    async def call(self, method: str, path: str, **options: Any) -> Any:
        """The answer; asked again while the service or its database is away. What is asked must bear that, by a key for
        instance."""
        limit = time.monotonic() + LATE_S
        while True:
            try:
                response = await self.http.request(method, f"/fleet/v1/{path}", **options)
                if response.status_code not in AWAY:
                    break
                said = response.text[:300]
            except httpx.TransportError as error:
                said = repr(error)
            if time.monotonic() > limit:
                raise TimeoutError(f"{method} {path}: {said}")
            await asyncio.sleep(0.2)
        if response.is_error:
            raise AssertionError(f"{method} {path}: {response.status_code} {response.text[:500]}")
        return response.json() if response.content else None

    async def log_in(self) -> None:
        body = {"name": NAME, "password": PASSWORD, "cookie": False}
        self.http.headers["authorization"] = f"Bearer {(await self.call('POST', 'login', json=body))['token']}"

    async def code(self, uses: int = 1) -> str:
        body = {"uses": uses, "auto_accept": True, "ttl_s": 3600}
        return str((await self.call("POST", "codes", json=body))["code"])

    async def state(self, uid: str) -> str:
        return str((await self.call("GET", f"devices/{uid}"))["state"])

    async def online(self, count: int, seconds: float = LATE_S) -> None:
        """Returns once so many devices are."""

        async def there() -> bool:
            return bool((await self.call("GET", "devices/counts")).get("online", 0) == count)

        await until(there, f"{count} devices are online", seconds)

    async def command(self, uid: str, op: str, key: str | None = None, **args: Any) -> str:
        """Its id, once it is kept."""
        body = {"uids": [uid], "op": op, "args": args, "ttl_s": 3600, "key": key}
        return str((await self.call("POST", "commands", json=body))[0]["id"])

    async def ended(self, id: str, seconds: float = LATE_S) -> dict[str, Any]:
        """The command once it has ended, however."""

        async def over() -> Any:
            shown = await self.call("GET", f"commands/{id}")
            return shown if shown["state"] in ENDED else None

        found: dict[str, Any] = await until(over, f"command {id} ends", seconds)
        return found

    async def roll_out(
        self, name: str, document: Mapping[str, Any], plan: Mapping[str, Any], *, shadow: str = "models"
    ) -> dict[str, Any]:
        """The rollout to everybody, once it is over."""
        body = {"name": name, "shadow": shadow, "document": document, "query": "", "plan": plan, "start": True}
        id = (await self.call("POST", "rollouts", json=body))["id"]

        async def over() -> Any:
            shown = await self.call("GET", f"rollouts/{id}")
            return shown if shown["state"] in ("succeeded", "failed", "rolled-back", "paused") else None

        found: dict[str, Any] = await until(over, f"the rollout {name} is over")
        return found

    # --- devices ---------------------------------------------------------------------------------------------------------

    async def enrol(self, code: str, name: str) -> Broker:
        """Where and as whom a device that has just enrolled connects."""
        key = ec.generate_private_key(ec.SECP256R1())
        body = {"code": code, "csr": make_csr(key), "name": name, "hardware": {"family": "simulated"}}
        answer = Enrolled.model_validate(await self.call("POST", "enrol", json=body))
        assert answer.certificate is not None
        assert answer.mqtt_host is not None
        assert answer.mqtt_port is not None
        broker = Broker(host=answer.mqtt_host, port=answer.mqtt_port, uid=answer.uid)
        if not answer.mqtt_tls:
            return broker
        pem = self.home / f"{answer.uid}.pem"
        private = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        pem.write_bytes(key.private_bytes(serialization.Encoding.PEM, *private) + answer.certificate.encode())
        return replace(broker, ca_file=self.ca, cert_file=pem, key_file=pem, floor=TimeFloor(trusted=lambda: False))

    async def add(self, *behaviours: Behaviour, period_s: float = 0.0) -> list[SimulatedDevice]:
        """Simulated devices, one for each behaviour, that have enrolled and go online."""
        code = await self.code(len(behaviours))
        first = len(self.devices)
        for index, behaviour in enumerate(behaviours):
            broker = await self.enrol(code, f"sim {first + index}")
            device = SimulatedDevice(broker, behaviour=behaviour, period_s=period_s)
            self.devices.append(device)
            device.start()
        return self.devices[first:]

    async def real(self, home: Path, **environment: str) -> RealDevice:
        """A device service of a state directory that has a model `tiny`, enrolled; not running yet.

        Args:
            environment: Further variables, for its enrolment too.
        """
        command = ["device", "enroll", "--fleet", self.server.url, "--code", await self.code(), "--ca", str(self.ca)]
        await asyncio.to_thread(partial(edgewise, home, *command, environment=environment))
        membership = EnrolmentFolder(home).read()
        assert membership is not None
        return RealDevice(membership.uid, home, environment)


class RealDevice:
    """A device service that can be killed and started again at the same address. `kill` takes its engine too, as a power cut."""

    def __init__(self, uid: str, home: Path, environment: Mapping[str, str]) -> None:
        self.uid = uid
        chosen = {**suite_limits(), "EDGEWISE_DRAIN_S": "2", **environment}
        self.service = DeviceService(home, ["--model", "tiny"], environment=chosen, port=free_port(), ready_s=LATE_S)

    def __repr__(self) -> str:
        return f"RealDevice({self.uid}, {self.service!r})"

    def start(self) -> None:
        self.service.start()

    async def ready(self) -> None:
        await asyncio.to_thread(self.service.wait_ready)

    def kill(self) -> None:
        family = self.service.children()
        self.service.kill()
        for process in family:
            process.kill()

    async def __aenter__(self) -> RealDevice:
        self.start()
        try:
            await self.ready()
        except BaseException:
            self.kill()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.service.stop)


@contextmanager
def device_home() -> Iterator[Path]:
    """A state directory with the tiny model `tiny`."""
    with new_home(starter=False) as home:
        import_tiny(home)
        yield home


@contextmanager
def secured(home: Path, host: str) -> Iterator[tuple[BrokerProcess, dict[str, str]]]:
    """mosquitto as `edgewise fleet broker-config` sets it up, and the fleet service's settings for it."""
    program = mosquitto_path()
    if program is None:
        raise NotRun("mosquitto is not installed")
    port, local = free_port(), free_port()
    written = write_broker_config(home / FOLDER, Authority(home / CA_FOLDER), [host], port=port, local_port=local)
    written.conf.write_text(written.conf.read_text() + "user root\n")  # of whoever runs the line
    settings = {"EDGEWISE_FLEET__BROKER_URL": f"mqtts://{host}:{port}", **services_account(written, "fleet", local)}
    yield from _ended(
        BrokerProcess("mosquitto", [program, "-c", str(written.conf)], home, "127.0.0.1", local), settings
    )


def services_account(written: BrokerConfig, user: str, port: int) -> dict[str, str]:
    return {"EDGEWISE_MQTT__PORT": str(port), "EDGEWISE_MQTT__PASSWORD_FILE": str(written.passwords[user])}


def _ended(broker: BrokerProcess, settings: dict[str, str]) -> Iterator[tuple[BrokerProcess, dict[str, str]]]:
    broker.start()
    try:
        yield broker, settings
    finally:
        broker.stop()


@asynccontextmanager
async def world(
    *, broker: BrokerProcess | None = None, database: str | None = None, tls: bool = False, host: str = "127.0.0.1"
) -> AsyncIterator[World]:
    """A fleet with one admin and no device.

    Args:
        broker: An open one on loopback; without it mosquitto with certificates.
        database: URL of it instead of SQLite.
        tls: Whether the service has a certificate of the fleet's authority.
        host: Address that the service listens on, and by which devices reach the broker.
    """
    with tempfile.TemporaryDirectory(prefix="edgewise-fleet-", ignore_cleanup_errors=True) as name:
        home = Path(name)
        settings = {"EDGEWISE_FLEET__BROKER": "external", "EDGEWISE_MQTT__HOST": "127.0.0.1"}
        settings |= {"EDGEWISE_FLEET__GRACE_S": "1"} | ({"EDGEWISE_FLEET__DATABASE": database} if database else {})
        if broker is not None:
            address = f"mqtt://127.0.0.1:{broker.port}"
            settings |= {"EDGEWISE_MQTT__PORT": str(broker.port), "EDGEWISE_FLEET__BROKER_URL": address}
            async with _served(home, broker, settings, tls=tls, host=host) as made:
                yield made
            return
        with secured(home, host) as (process, account):
            async with _served(home, process, settings | account, tls=tls, host=host) as made:
                yield made


@asynccontextmanager
async def _served(
    home: Path, broker: BrokerProcess, settings: dict[str, str], *, tls: bool, host: str
) -> AsyncIterator[World]:
    authority = Authority(home / CA_FOLDER)
    ca = home / CA_FOLDER / CERTIFICATE_FILE
    if tls:
        certificate, key = authority.server_certificate([host], 365)
        (home / "server.crt").write_text(certificate)
        (home / "server.key").write_text(key)
        settings |= {"EDGEWISE_TLS__CERT": str(home / "server.crt"), "EDGEWISE_TLS__KEY": str(home / "server.key")}
    chosen = {
        "home": str(home),
        **({"fleet.database": url} if (url := settings.get("EDGEWISE_FLEET__DATABASE")) else {}),
    }
    await add_user_locally(load_settings(None, chosen, environ={}).settings, NAME, PASSWORD, "admin")
    verify: Any = ssl.create_default_context(cafile=ca) if tls else True
    server = FleetServer(home, host=host, environment=settings, scheme="https" if tls else "http", verify=verify)
    server.start()
    try:
        await asyncio.to_thread(server.wait_ready)
        async with httpx.AsyncClient(base_url=server.url, timeout=60, trust_env=False, verify=verify) as http:
            made = World(home, broker, server, ca, http)
            try:
                await made.log_in()
                yield made
            finally:
                await asyncio.gather(*(device.stop() for device in made.devices), return_exceptions=True)
    finally:
        await asyncio.to_thread(server.stop)
