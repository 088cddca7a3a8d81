"""A device service or a cloud engine as a real child process: start it, wait until it is ready, end it."""

from __future__ import annotations

import itertools
import os
import secrets
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

import httpx
import psutil

if TYPE_CHECKING:
    from typing_extensions import Self

_FIRST_PORT, _PORT_COUNT = 16_384, 16_384  # below /proc/sys/net/ipv4/ip_local_port_range of most systems
_numbers = itertools.count(secrets.randbelow(_PORT_COUNT))  # begins elsewhere in each process
ENGINE_MODULE = "edgewise.engine"


class ServiceError(Exception):
    """The service did not start, or did not end as it should; the message carries the end of its log."""


def free_port() -> int:
    """A TCP port of the loopback address that is free now, and stays so until somebody asks for this very one.

    It lies below those that the kernel gives out by itself, and this process names none twice.
    """
    while not port_is_free("127.0.0.1", port := _FIRST_PORT + next(_numbers) % _PORT_COUNT):
        continue
    return port


def port_is_free(host: str, port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def port_owner(port: int) -> str:
    """Who listens on a TCP port, for a message: "python3 (process 123)", as far as this user may see."""
    try:
        listeners = [
            found
            for found in psutil.net_connections("tcp")
            if found.laddr and found.laddr.port == port and found.status == psutil.CONN_LISTEN and found.pid
        ]
    except psutil.AccessDenied:
        return "another program"
    for found in listeners:
        try:
            return f"{psutil.Process(found.pid).name()} (process {found.pid})"
        except psutil.NoSuchProcess:
            continue
    return "another program"


def edgewise_command(*args: str) -> list[str]:
    """The command line of this environment's `edgewise`."""
    return [str(Path(sys.executable).with_name("edgewise")), *args]


def edgewise_environment(home: Path, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """This environment without any `EDGEWISE_*` setting of the caller's, with the state directory `home`."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("EDGEWISE_")}
    return {**kept, "EDGEWISE_HOME": str(home), **(extra or {})}


class DeviceService:
    """One `edgewise serve`, in a session of its own, so that a Ctrl-C at the terminal reaches only its starter.

    A context manager: entering starts it and waits until it is ready, leaving ends it, whatever happened. Where `setpriv` is
    there, the service also ends when its starter is killed.

    Attributes:
        command: Subcommand that it is.
        url: Base address without a path.
        log: File with the service's output.
    """

    command = "serve"

    def __init__(
        self,
        home: Path,
        flags: Sequence[str] = (),
        *,
        host: str = "127.0.0.1",
        port: int | None = None,
        log: Path | None = None,
        environment: Mapping[str, str] | None = None,
        prefix: Sequence[str] = (),
        scheme: str = "http",
        ready_s: float = 120.0,
        verify: bool | ssl.SSLContext = True,
    ) -> None:
        self.home = home
        self.host = host
        self.port = port if port is not None else free_port()
        self.url = f"{scheme}://{host}:{self.port}"
        self.log = log or home / f"{self.command.replace(' ', '-')}-{self.port}.log"
        self._flags = [*flags]
        self._environment = environment
        self._prefix = [*prefix]
        self._ready_s = ready_s
        self._verify = verify
        self._process: subprocess.Popen[bytes] | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url}, pid={self.pid if self._process else None})"

    @property
    def process(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise ServiceError("the service has not been started")
        return self._process

    @property
    def pid(self) -> int:
        return self.process.pid

    def start(self) -> None:
        """Start the process; returns at once."""
        parent_death = ["setpriv", "--pdeathsig", "TERM", "--"] if shutil.which("setpriv") else []
        serve = edgewise_command(*self.command.split(), "--host", self.host, "--port", str(self.port), *self._flags)
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*self._prefix, *parent_death, *serve],
                env=edgewise_environment(self.home, self._environment),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait_ready(self) -> None:
        """Return once /readyz says yes.

        Raises:
            ServiceError: The process ended, or was not ready in time.
        """
        limit = time.monotonic() + self._ready_s
        while time.monotonic() < limit:
            if self.process.poll() is not None:
                raise ServiceError(f"the service ended with code {self.process.returncode}.\n{self.log_tail()}")
            if self.ready():
                return
            time.sleep(0.05)
        raise ServiceError(f"the service was not ready after {self._ready_s:.0f} s.\n{self.log_tail()}")

    def ready(self) -> bool:
        """Whether /readyz answers 200 now."""
        verify = (
            self._verify if self.url.startswith("https:") else False
        )  # reading certificates takes longer than asking
        try:
            return httpx.get(f"{self.url}/readyz", timeout=10, verify=verify, trust_env=False).is_success
        except httpx.TransportError:
            return False

    def log_tail(self, lines: int = 30) -> str:
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        return f"End of {self.log}:\n" + "\n".join(text.splitlines()[-lines:])

    def children(self) -> list[psutil.Process]:
        """Every process below the service."""
        try:
            return psutil.Process(self.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []

    def engine_pid(self, timeout_s: float = 60.0) -> int:
        """Process id of the engine; waits for one while the engine is being restarted."""
        limit = time.monotonic() + timeout_s
        while time.monotonic() < limit:
            for child in self.children():
                if is_engine(child):
                    return int(child.pid)
            time.sleep(0.02)
        raise ServiceError(f"no engine process below the service.\n{self.log_tail()}")

    def terminate(self) -> None:
        """Send SIGTERM; returns at once."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)

    def stop(self, timeout_s: float = 60.0) -> int:
        """Send SIGTERM and wait; returns the exit code.

        Raises:
            ServiceError: It did not end in time; it has been killed, with all that it started.
        """
        family = self.children()
        self.terminate()
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            for process in family:
                _kill(process)
            self.process.kill()
            self.process.wait()
            raise ServiceError(f"the service did not end within {timeout_s:.0f} s.\n{self.log_tail()}") from None

    def kill(self) -> None:
        """SIGKILL to the service alone, as the kernel does it; its engine ends by itself. Returns when it is gone."""
        self.process.kill()
        self.process.wait()

    def __enter__(self) -> Self:
        self.start()
        try:
            self.wait_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


class CloudService(DeviceService):
    """One `edgewise cloud`."""

    command = "cloud"


class FleetServer(DeviceService):
    """One `edgewise fleet serve`."""

    command = "fleet serve"


def is_engine(process: psutil.Process) -> bool:
    """Whether a process below the service is a living engine."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE and any(ENGINE_MODULE in part for part in process.cmdline())
    except psutil.NoSuchProcess:
        return False


def _kill(process: psutil.Process) -> None:
    """Kill one process that the service started; it may have ended by itself meanwhile."""
    try:
        process.kill()
    except psutil.NoSuchProcess:
        return
