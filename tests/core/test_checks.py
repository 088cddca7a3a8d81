from __future__ import annotations

import http.server
import os
import shutil
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from edgewise.core.checks import (
    check_clock,
    check_memory,
    check_port,
    check_python,
    check_state_folder,
    check_systemd,
    fetch_health,
)
from edgewise.core.clock import FakeClock
from edgewise.core.errors import StorageError


def test_python() -> None:
    assert check_python().status == "ok"
    old = check_python((3, 9, 18))
    assert (old.status, old.detail) == ("fail", "Python 3.9.18 is too old")


def test_clock() -> None:
    assert check_clock(FakeClock()).status == "ok"
    dead = check_clock(FakeClock(0.0))
    assert dead.status == "fail"
    assert "1970-01-01" in dead.detail
    assert "timedatectl" in dead.remedy


@pytest.mark.parametrize(("available", "status"), [(2**33, "ok"), (2**29, "warn"), (2**20, "fail")])
def test_memory(available: int, status: str, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = SimpleNamespace(available=available, total=2**34)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    check = check_memory()
    assert check.status == status
    assert bool(check.remedy) == (status != "ok")


def test_state_folder(tmp_path: Path) -> None:
    assert check_state_folder(tmp_path).status in ("ok", "warn")
    assert list(tmp_path.iterdir()) == []
    missing = check_state_folder(tmp_path / "a" / "b")
    assert "not created yet" in missing.detail
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("free", "status"), [(2**34, "ok"), (2**30, "warn"), (2**20, "fail")])
def test_free_space(free: int, status: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=free))
    assert check_state_folder(tmp_path).status == status


def test_a_file_in_place_of_the_state_folder(tmp_path: Path) -> None:
    (tmp_path / "home").touch()
    check = check_state_folder(tmp_path / "home")
    assert (check.status, check.detail) == ("fail", f"{tmp_path}/home: {tmp_path}/home is a file")


def test_a_state_folder_that_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object) -> None:
        raise StorageError("the file system is read-only")

    monkeypatch.setattr("edgewise.core.checks.atomic_write", refuse)
    assert "read-only" in check_state_folder(tmp_path).detail
    monkeypatch.setattr(os, "access", lambda *args: False)
    assert "cannot be written" in check_state_folder(tmp_path / "new").detail


class Healthz(http.server.BaseHTTPRequestHandler):
    body = b'{"status": "alive"}'

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, *args: object) -> None: ...


@contextmanager
def serving(handler: type[Healthz]) -> Iterator[int]:
    with http.server.HTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def test_a_free_port() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    assert check_port("127.0.0.1", port).detail == f"127.0.0.1:{port} is free"


def test_our_own_service_on_the_port() -> None:
    with serving(Healthz) as port:
        check = check_port("127.0.0.1", port)
        assert (check.status, check.detail) == ("ok", f"127.0.0.1:{port}: the service is running (alive)")
        assert fetch_health("0.0.0.0", port) == "alive"


@pytest.mark.parametrize("body", [b"<html>", b"[]", b"{}", b""])
def test_another_program_on_the_port(body: bytes) -> None:
    with serving(type("Other", (Healthz,), {"body": body})) as port:
        check = check_port("127.0.0.1", port)
    assert check.status == "fail"
    assert "not Edgewise" in check.detail
    assert str(port) in check.remedy


def test_a_silent_program_on_the_port(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgewise.core.checks._NET_TIMEOUT_S", 0.05)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        assert check_port("127.0.0.1", listener.getsockname()[1]).status == "fail"
        assert fetch_health("127.0.0.1", listener.getsockname()[1], tls=True) is None


def test_an_address_of_another_machine() -> None:
    assert check_port("192.0.2.1", 8400).status == "fail"


def test_a_name_without_an_address() -> None:
    check = check_port("no.such.host.invalid", 8400)
    assert (check.status, check.remedy) == ("fail", "set `host` to an address of this machine")


def test_systemd(tmp_path: Path) -> None:
    unit = "edgewise-device.service"
    assert "does not run here" in check_systemd(unit, root=tmp_path).detail
    (tmp_path / "run/systemd/system").mkdir(parents=True)
    assert check_systemd(unit, root=tmp_path).remedy == "`sudo edgewise install`"
    (tmp_path / "etc/systemd/system").mkdir(parents=True)
    (tmp_path / "etc/systemd/system" / unit).touch()
    assert check_systemd(unit, root=tmp_path).status == "ok"
