"""The fleet of the demo: a fleet service with its broker and console on this machine, in which the device is enrolled."""

from __future__ import annotations

import asyncio
import importlib.util
import secrets
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

import httpx

from edgewise.bench.machines import Machine, free_port, port_near
from edgewise.core.errors import EngineUnavailable
from edgewise.core.files import atomic_write
from edgewise.core.settings import Settings

CONSOLE_PORT = 8600
_PASSWORD, _DEVICE = "demo-admin-password", "demo-device"  # files of the fleet's state directory
_NEEDS = ("sqlalchemy", "alembic", "nicegui", "argon2", "iotcore")


def obstacle(home: Path, device_home: Path) -> str | None:
    """Why there is no fleet in this demo: packages that are missing, or a device that belongs to another fleet; else None."""
    from edgewise.edge.enrol.folder import EnrolmentFolder

    lacking = [name for name in _NEEDS if importlib.util.find_spec(name) is None]
    if lacking:
        return f"no console: {', '.join(lacking)} is missing; install edgewise[fleet,broker]"
    member = EnrolmentFolder(device_home).read()
    if member is not None and member.uid != _read(home / _DEVICE):
        return f"no console: this device belongs to the fleet {member.fleet}"
    return None


class DemoFleet:
    """A context manager that ends the service; `start` returns at once, so that others start meanwhile.

    Args:
        home: State directory of the fleet service.
        device_home: That of the device.
        port: Of the console; 8600 by default, or a free one if something else has it.
    """

    admin = "admin"

    def __init__(self, home: Path, device_home: Path, port: int | None = None) -> None:
        self._home, self._device_home = home, device_home
        mqtt = {"EDGEWISE_MQTT__HOST": "127.0.0.1", "EDGEWISE_MQTT__PORT": str(free_port())}
        self.settings: Mapping[str, str] = mqtt | {"EDGEWISE_AGENT__TELEMETRY_S": "2"}
        """Of the device, which finds the broker by them wherever it is this time."""
        self._machine = Machine(["fleet", "serve"], home, port or port_near(CONSOLE_PORT), mqtt)

    @property
    def url(self) -> str:
        """Of the console."""
        return self._machine.url

    @property
    def password(self) -> str:
        """Of the console's admin."""
        return (self._home / _PASSWORD).read_text()

    def __enter__(self) -> DemoFleet:
        self._home.mkdir(parents=True, exist_ok=True)
        if not (self._home / _PASSWORD).exists():
            self._make_admin()
        self._machine.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._machine.stop()

    def enrol_device(self) -> None:
        """Wait for the service and enrol the device, unless it is in a fleet already.

        Raises:
            EngineUnavailable: The fleet service did not start, or does not let its admin in.
        """
        from edgewise.edge.enrol.enrolment import enrol
        from edgewise.edge.enrol.folder import EnrolmentFolder

        if EnrolmentFolder(self._device_home).read() is not None:
            return
        self._machine.wait_ready()
        member = asyncio.run(enrol(self._device_home, self.url, self._claim_code()))
        atomic_write(self._home / _DEVICE, member.uid)

    def _make_admin(self) -> None:
        from edgewise.cloud.fleet.people.local import add_user_locally

        password = secrets.token_urlsafe(9)
        asyncio.run(add_user_locally(Settings(home=self._home), self.admin, password, "admin", None))
        atomic_write(self._home / _PASSWORD, password, mode=0o600)

    def _claim_code(self) -> str:
        login = {"name": self.admin, "password": self.password, "cookie": False}
        with httpx.Client(base_url=f"{self.url}/fleet/v1", timeout=60, trust_env=False) as client:
            answer = client.post("login", json=login)
            if answer.is_success:
                bearer = {"Authorization": f"Bearer {answer.json()['token']}"}
                answer = client.post("codes", json={"auto_accept": True, "ttl_s": 600}, headers=bearer)
        if answer.is_error:
            raise EngineUnavailable(
                f"The demo's fleet service answered {answer.status_code}: {answer.text[:200]} If its password was changed, "
                f"remove {self._home} to begin anew."
            )
        return str(answer.json()["code"])


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except FileNotFoundError:
        return ""
