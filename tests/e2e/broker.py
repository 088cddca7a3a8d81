"""Real MQTT brokers for tests: iotcore and mosquitto, each a process of its own that can be killed and started again."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from edgewise.wire.mqtt.local_broker import broker_config
from scripts.service import free_port

ROOT = Path(__file__).resolve().parents[2]
CLOUD_USER = "edgewise-cloud"
_START_S = 60.0


@dataclass
class BrokerProcess:
    """A broker on loopback. Users are those of `passwords` (mosquitto); without any, everybody may do everything."""

    name: str
    command: list[str]
    folder: Path
    host: str
    port: int
    passwords: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, again after `kill`; returns once it answers."""
        with (self.folder / "broker.log").open("ab") as log:
            self.process = subprocess.Popen(self.command, cwd=self.folder, stdout=log, stderr=log)
        deadline = time.monotonic() + _START_S
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                socket.create_connection((self.host, self.port), timeout=1).close()
            except OSError:
                time.sleep(0.05)
            else:
                return
        raise RuntimeError(f"{self.name} did not start:\n{(self.folder / 'broker.log').read_text()[-2000:]}")

    def kill(self) -> None:
        """SIGKILL: nothing is saved."""
        self.stop(signal.SIGKILL)

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        if self.process is not None:
            self.process.send_signal(how)
            self.process.wait(_START_S)
            self.process = None


def mosquitto_path() -> str | None:
    return shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin")


@contextmanager
def iotcore_broker(port: int | None = None) -> Iterator[BrokerProcess]:
    """iotcore with the configuration of `wire.mqtt.local_broker`, at a free port unless one is given; nobody watches it."""
    with tempfile.TemporaryDirectory(prefix="edgewise-broker-") as name:
        folder, port = Path(name), port or free_port()
        (folder / "broker.toml").write_text(broker_config("127.0.0.1", port))
        command = [sys.executable, "-P", "-m", "iotcore", "--config", "broker.toml", "--log-level", "CRITICAL"]
        if sys.version_info < (3, 11):
            command.remove("-P")
        yield from _running(BrokerProcess("iotcore", command, folder, "127.0.0.1", port))


@contextmanager
def mosquitto_broker(users: tuple[str, ...] = (), port: int | None = None) -> Iterator[BrokerProcess]:
    """mosquitto with our configuration (`systemd/mosquitto.conf`); skips the test where it is not installed.

    Args:
        users: Devices that may connect, besides the cloud's user; each gets a password. Without any, the broker knows no users
            and no access list, as iotcore.
        port: A free one unless one is given.
    """
    program = mosquitto_path()
    if program is None:
        pytest.skip("mosquitto is not installed")
    with tempfile.TemporaryDirectory(prefix="edgewise-broker-") as name:
        folder, port = Path(name), port or free_port()
        passwords = {user: f"secret-of-{user}" for user in (*users, CLOUD_USER)} if users else {}
        (folder / "mosquitto.conf").write_text(_mosquitto_config(folder, port, open_to_all=not users))
        (folder / "edgewise.acl").write_text((ROOT / "systemd" / "mosquitto.acl").read_text())
        (folder / "edgewise.passwd").touch(mode=0o600)
        for user, password in passwords.items():
            subprocess.run(["mosquitto_passwd", "-b", "edgewise.passwd", user, password], cwd=folder, check=True)
        folder.chmod(0o755)
        yield from _running(
            BrokerProcess("mosquitto", [program, "-c", "mosquitto.conf"], folder, "127.0.0.1", port, passwords)
        )


def _mosquitto_config(folder: Path, port: int, *, open_to_all: bool) -> str:
    """Our configuration with paths of a folder; of the account that runs the test, which need not be mosquitto's."""
    text = (ROOT / "systemd" / "mosquitto.conf").read_text()
    text = text.replace("listener 1883 ", f"listener {port} ")
    text = text.replace("/etc/mosquitto/edgewise.", f"{folder}/edgewise.").replace("/var/lib/mosquitto/", f"{folder}/")
    if open_to_all:
        closed = ("allow_anonymous false", "use_username_as_clientid", "password_file", "acl_file")
        text = "\n".join(line for line in text.splitlines() if not line.startswith(closed)) + "\nallow_anonymous true\n"
    return text + "user root\n"


def _running(broker: BrokerProcess) -> Iterator[BrokerProcess]:
    broker.start()
    try:
        yield broker
    finally:
        broker.stop()
