"""Two machines as processes of this one, for the demo and for measurements: a device and a cloud engine on loopback."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType, TracebackType

import httpx

from edgewise.bench.link import Link, LinkShape
from edgewise.core.errors import EngineUnavailable
from edgewise.core.python import module_command
from edgewise.security.keys import KeyStore

_READY_S = 120.0
_STOP_S = 60.0
_KEY_S = 86_400.0


def end_as_interrupt() -> None:
    """From now on SIGTERM does what Ctrl-C does, so that machines are ended and folders removed."""

    def interrupt(_signal: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)


def free_port() -> int:
    """A TCP port of the loopback address that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def port_near(wanted: int) -> int:
    """`wanted` if it is free on the loopback address, else one that is."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", wanted))
        except OSError:
            return free_port()
    return wanted


class Machine:
    """One `edgewise serve` or `edgewise cloud`, in a session of its own, so that a Ctrl-C reaches only its starter.
    Where `setpriv` is there, it also ends when its starter is killed.

    A context manager: entering starts it and waits until it is ready, leaving ends it.

    Args:
        command: Subcommand and flags, without the port.
        home: State directory.
        settings: Further `EDGEWISE_*` variables.
    """

    def __init__(self, command: list[str], home: Path, port: int, settings: Mapping[str, str]) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.log = home / f"machine-{command[0]}.log"
        self._command = [*module_command("edgewise.cli.main"), *command, "--port", str(port)]
        self._environment = {**os.environ, **settings, "EDGEWISE_HOME": str(home)}
        self._process: subprocess.Popen[bytes] | None = None

    def __repr__(self) -> str:
        return f"Machine({self.url}, running={self._process is not None and self._process.poll() is None})"

    def start(self) -> None:
        """Start the process; returns at once."""
        with_starter = ["setpriv", "--pdeathsig", "TERM", "--"] if shutil.which("setpriv") else []
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*with_starter, *self._command],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait_ready(self) -> None:
        """Return once it can answer.

        Raises:
            EngineUnavailable: The process ended, or was not ready in time; the message ends with its log.
        """
        assert self._process is not None
        limit = time.monotonic() + _READY_S
        while time.monotonic() < limit:
            if self._process.poll() is not None:
                raise EngineUnavailable(f"the service ended with code {self._process.returncode}.\n{self._log_end()}")
            if self._ready():
                return
            time.sleep(0.05)
        raise EngineUnavailable(f"the service was not ready after {_READY_S:.0f} s.\n{self._log_end()}")

    def stop(self) -> int:
        """Send SIGTERM and wait; returns the exit code. One that does not end in time is killed."""
        if self._process is None:
            return 0
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()

    @property
    def pid(self) -> int:
        """Of the process, once it is started."""
        assert self._process is not None
        return self._process.pid

    def wait(self) -> int:
        """Wait for its own end; returns the exit code."""
        assert self._process is not None
        return self._process.wait()

    def __enter__(self) -> Machine:
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

    def _ready(self) -> bool:
        try:
            return httpx.get(f"{self.url}/readyz", timeout=10, trust_env=False).is_success
        except httpx.TransportError:
            return False

    def _log_end(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines()[-30:]
        return f"End of {self.log}:\n" + "\n".join(lines)


def sharing_home(home: Path, models: Path) -> Path:
    """A state directory at `home`, made if need be, that shares the model store `models` and nothing else."""
    home.mkdir(parents=True, exist_ok=True)
    link = home / "models"
    if not link.is_symlink():
        link.symlink_to(models)
    return home


@contextmanager
def linked(
    device_home: Path,
    cloud_home: Path,
    model: str,
    *,
    shape: LinkShape | None = None,
    flags: Sequence[str] = (),
    port: int | None = None,
    settings: Mapping[str, str] | None = None,
    meanwhile: Callable[[], None] = lambda: None,
) -> Iterator[tuple[Machine, Link]]:
    """A device and the link to its cloud engine, all ready; ended in the opposite order.

    Args:
        shape: What the link does to bytes.
        flags: Of the device's `serve`.
        port: The device's; a free one by default.
        settings: Further `EDGEWISE_*` variables of the device.
        meanwhile: Done while the cloud engine starts, before the device does.

    Raises:
        EngineUnavailable: One of the two did not start; the message ends with its log.
    """
    cloud_port = free_port()
    with KeyStore(cloud_home / "keys.db") as keys:
        _, key = keys.create(f"device-{os.getpid()}-{int(time.time())}", ttl_s=_KEY_S)
    with ExitStack() as stack:
        cloud = Machine(["cloud", "--model", model], cloud_home, cloud_port, {})
        cloud.start()
        stack.callback(cloud.stop)
        link = stack.enter_context(Link("127.0.0.1", cloud_port, shape, keep_bytes=0))
        meanwhile()
        known = {
            "EDGEWISE_CLOUD__URL": f"http://127.0.0.1:{link.port}",
            "EDGEWISE_CLOUD__KEY": key,
            **(settings or {}),
        }
        device = Machine(["serve", "--model", model, *flags], device_home, port or free_port(), known)
        stack.enter_context(device)
        cloud.wait_ready()
        yield device, link
