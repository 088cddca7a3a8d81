from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from edgewise.core.sdnotify import Notifier


@pytest.fixture(params=["path", "abstract"])
def systemd(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[socket.socket, str]]:
    """A datagram socket such as systemd binds, and the NOTIFY_SOCKET that names it."""
    name = f"@edgewise-{uuid.uuid4()}" if request.param == "abstract" else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
        server.bind("\0" + name[1:] if name.startswith("@") else name)
        server.setblocking(False)
        yield server, name


def test_messages(systemd: tuple[socket.socket, str]) -> None:
    server, name = systemd
    notifier = Notifier(name)
    assert notifier.enabled
    assert notifier.ready("serving")
    assert notifier.status("2 running\nREADY=0")
    assert notifier.watchdog()
    assert notifier.extend_timeout(1.5)
    assert notifier.stopping("draining")
    received = [server.recv(4096).decode() for _ in range(5)]
    assert received == [
        "READY=1\nSTATUS=serving",
        "STATUS=2 running READY=0",
        "WATCHDOG=1",
        "EXTEND_TIMEOUT_USEC=1500000",
        "STOPPING=1\nSTATUS=draining",
    ]


def test_from_environ_takes_the_variables_away(systemd: tuple[socket.socket, str]) -> None:
    server, name = systemd
    environ = {"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid()), "PATH": "/bin"}
    notifier = Notifier.from_environ(environ)
    assert environ == {"PATH": "/bin"}
    assert notifier.watchdog_interval_s == 15.0
    assert notifier.ready()
    assert server.recv(4096) == b"READY=1"


def test_the_process_environment_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", "/nonexistent/notify")
    assert Notifier.from_environ().enabled
    assert "NOTIFY_SOCKET" not in os.environ


@pytest.mark.parametrize("environ", [{}, {"NOTIFY_SOCKET": ""}, {"WATCHDOG_USEC": "30000000"}])
def test_outside_systemd_nothing_happens(environ: dict[str, str]) -> None:
    notifier = Notifier.from_environ(environ)
    assert not notifier.enabled
    assert notifier.watchdog_interval_s is None
    assert not any([notifier.ready(), notifier.status("x"), notifier.stopping(), notifier.watchdog()])
    assert not notifier.extend_timeout(1)


@pytest.mark.parametrize(("usec", "pid"), [("1000000", "1"), ("many", ""), ("0", "")])
def test_a_watchdog_for_another_process_is_not_ours(usec: str, pid: str) -> None:
    environ = {"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": usec, "WATCHDOG_PID": pid}
    assert Notifier.from_environ(environ).watchdog_interval_s is None


def test_a_failure_is_logged_once_and_does_not_raise(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    notifier = Notifier(str(tmp_path / "gone"))
    assert not notifier.watchdog()
    assert not notifier.watchdog()
    assert [record.message for record in caplog.records] == ["sdnotify_failed"]


def test_a_full_socket_does_not_block(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
        server.bind(str(tmp_path / "notify"))
        notifier = Notifier(str(tmp_path / "notify"))
        while notifier.watchdog():
            pass  # until the kernel's queue is full


def test_an_address_that_is_not_supported_is_said(caplog: pytest.LogCaptureFixture) -> None:
    assert not Notifier.from_environ({"NOTIFY_SOCKET": "vsock:2:1234"}).enabled
    assert [record.message for record in caplog.records] == ["sdnotify_address_unsupported"]


def test_repr() -> None:
    assert repr(Notifier(None)) == "Notifier(address=None, watchdog_s=None)"
