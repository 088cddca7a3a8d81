"""The two machines of the demo, as processes of this one: a device, a cloud engine, and the link between them."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

import httpx

from edgewise.core.errors import EngineUnavailable
from edgewise.core.python import module_command

_READY_S = 120.0
_STOP_S = 60.0


def free_port() -> int:
    """A TCP port of the loopback address that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


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
        self.log = home / f"demo-{command[0]}.log"
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


def cloud_home(device_home: Path) -> Path:
    """A state directory for the demo's cloud engine, which shares the device's model store and nothing else."""
    home = device_home / "demo-cloud"
    home.mkdir(parents=True, exist_ok=True)
    models = home / "models"
    if not models.is_symlink():
        models.symlink_to(device_home / "models")
    return home
