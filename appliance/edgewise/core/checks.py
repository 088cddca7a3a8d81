"""Checks of the machine that `edgewise doctor` shows: each says what is found, what is wrong and how to mend it."""

from __future__ import annotations

import errno
import http.client
import json
import os
import shutil
import socket
import ssl
import sys
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Literal

import psutil

from edgewise.core.addresses import connectable
from edgewise.core.clock import EARLIEST_PLAUSIBLE, Clock, plausible
from edgewise.core.errors import StorageError
from edgewise.core.files import atomic_write
from edgewise.core.sizes import gib

Status = Literal["ok", "warn", "fail"]

MIN_PYTHON = (3, 10)
MIN_DISK, LOW_DISK = 200 * 2**20, 2 * 2**30  # bytes: to work at all; for a model to be pulled
MIN_MEMORY, LOW_MEMORY = 256 * 2**20, 2**30  # bytes: for service and starter model; for anything larger
_NET_TIMEOUT_S = 3.0


@dataclass(frozen=True, slots=True)
class Check:
    """Result of one check.

    Attributes:
        status: "ok"; "warn" works, but not as it could; "fail" keeps the service from working.
        detail: What was found.
        remedy: What to do; empty when there is nothing to do.
    """

    name: str
    status: Status
    detail: str
    remedy: str = ""


def check_python(version: tuple[int, ...] = sys.version_info[:3]) -> Check:
    text = ".".join(map(str, version))
    if version[:2] < MIN_PYTHON:
        return Check("python", "fail", f"Python {text} is too old", "install Python 3.10 or later and Edgewise into it")
    return Check("python", "ok", f"Python {text}, {sys.executable}")


def check_clock(clock: Clock) -> Check:
    """TLS dates and the expiry of keys depend on a clock that is roughly right."""
    now = datetime.fromtimestamp(clock.time(), tz=timezone.utc)
    if not plausible(clock.time()):
        detail = (
            f"the clock says {now:%Y-%m-%d}, before {EARLIEST_PLAUSIBLE:%Y-%m-%d}, when this software did not exist"
        )
        return Check("clock", "fail", detail, "set the clock, or start a time service: `timedatectl set-ntp true`")
    return Check("clock", "ok", f"{now:%Y-%m-%d %H:%M} UTC")


def check_memory() -> Check:
    """Available memory as the kernel estimates it (MemAvailable), which holds on machines with unified memory too."""
    memory = psutil.virtual_memory()
    detail = f"{gib(memory.available)} available of {gib(memory.total)}"
    if memory.available < MIN_MEMORY:
        return Check("memory", "fail", detail, f"at least {gib(MIN_MEMORY)} are needed: end other programs")
    if memory.available < LOW_MEMORY:
        return Check("memory", "warn", detail, "only the smallest models fit: `edgewise models fit NAME --explain`")
    return Check("memory", "ok", detail)


def check_state_folder(home: Path) -> Check:
    """Whether the state directory can be written, by writing to it, and has room."""
    existing = next(folder for folder in (home, *home.parents) if folder.exists())
    refusal = _refusal(home, existing)
    if refusal:
        return Check(
            "state folder", "fail", f"{home}: {refusal}", "run as its owner, or set EDGEWISE_HOME to another folder"
        )
    free = shutil.disk_usage(existing).free
    detail = f"{home}, {gib(free)} free" + ("" if home.exists() else " (not created yet)")
    if free < MIN_DISK:
        return Check("state folder", "fail", detail, "free space, or set EDGEWISE_HOME to a larger disk")
    if free < LOW_DISK:
        return Check("state folder", "warn", detail, "there is no room for larger models: free space")
    return Check("state folder", "ok", detail)


def _refusal(home: Path, existing: Path) -> str:
    if not existing.is_dir():
        return f"{existing} is a file"
    if not home.exists():
        return "" if os.access(existing, os.W_OK | os.X_OK) else f"{existing} cannot be written"
    probe = home / ".doctor"
    try:
        atomic_write(probe, b"x")
        probe.unlink()
    except StorageError as error:
        return error.message
    return ""


def check_port(host: str, port: int, *, tls: bool = False) -> Check:
    """Whether the service can take its address, or has it already."""
    where = f"{host}:{port}"
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[
            0
        ]
        with socket.socket(family, kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except socket.gaierror as error:
        return Check("port", "fail", f"{host}: {error.strerror}", "set `host` to an address of this machine")
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            return Check(
                "port", "fail", f"{where}: {error.strerror}", "set `host` and `port` to an address of this machine"
            )
        return _check_taken_port(host, port, tls=tls)
    return Check("port", "ok", f"{where} is free")


def _check_taken_port(host: str, port: int, *, tls: bool) -> Check:
    health = fetch_health(host, port, tls=tls)
    if health is None:
        remedy = f"end that program (`ss -ltnp 'sport = :{port}'` names it) or set another `port`"
        return Check("port", "fail", f"{host}:{port} is taken by a program that is not Edgewise", remedy)
    return Check("port", "ok", f"{host}:{port}: the service is running ({health})")


def fetch_health(host: str, port: int, *, tls: bool = False) -> str | None:
    """What `/healthz` says in `status`, or None if no Edgewise service answers there."""
    target = connectable(host)
    connection: http.client.HTTPConnection
    if tls:
        # Only asks who is there and sends no secret, so the certificate, which may be our own, is not checked.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        connection = http.client.HTTPSConnection(target, port, timeout=_NET_TIMEOUT_S, context=context)
    else:
        connection = http.client.HTTPConnection(target, port, timeout=_NET_TIMEOUT_S)
    try:
        connection.request("GET", "/healthz")
        answer = json.loads(connection.getresponse().read(65536))
    except (OSError, http.client.HTTPException, ValueError):
        return None
    finally:
        connection.close()
    return str(answer["status"]) if isinstance(answer, dict) and "status" in answer else None


def check_systemd(unit: str, *, root: Path = Path("/")) -> Check:
    """Whether systemd runs here and knows our unit."""
    if not (root / "run/systemd/system").is_dir():
        detail = "systemd does not run here: nothing restarts the service after a crash or a reboot"
        return Check("systemd", "warn", detail, "use another supervisor, for instance the container's restart policy")
    folders = ("etc/systemd/system", "usr/lib/systemd/system", "usr/local/lib/systemd/system")
    found = [root / folder / unit for folder in folders if (root / folder / unit).exists()]
    if not found:
        return Check("systemd", "warn", f"{unit} is not installed", "`sudo edgewise install`")
    return Check("systemd", "ok", str(found[0]))
