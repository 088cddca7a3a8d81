"""One child process that runs the engine: started, watched, killed, reaped."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
from pathlib import Path

from edgewise.core.log import logging_in_force
from edgewise.core.python import module_command

STDERR = 2
_KILL_S = 5.0


class EngineProcess:
    """A child in a session of its own, connected by one end of a socket pair.

    It is started from the event loop's thread and never from an executor's: the kernel kills it when the *thread* that started
    it ends (prctl(2), PR_SET_PDEATHSIG), and the loop's thread lives as long as the service. Normally that is the main thread.
    """

    def __init__(self, popen: subprocess.Popen[bytes], pidfd: int, sock: socket.socket) -> None:
        self._popen = popen
        self._pidfd = pidfd
        self.sock = sock

    def __repr__(self) -> str:
        return f"EngineProcess(pid={self.pid}, status={self._popen.returncode})"

    @classmethod
    def spawn(cls, factory: str) -> EngineProcess:
        """Start `python -m edgewise.engine.worker`; its output goes to our standard error.

        Raises:
            OSError: The system starts no more processes, or has no descriptor left.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with theirs, contextlib.ExitStack() as undo:
            undo.callback(ours.close)
            level, form = logging_in_force()
            command = [*module_command("edgewise.engine.worker"), "--fd", str(theirs.fileno())]
            command += ["--parent", str(os.getpid()), "--factory", factory]
            command += ["--log-level", level, "--log-format", form]
            popen = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=STDERR,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,  # a Ctrl-C in the terminal reaches the service only
                env=os.environ | {"PYTHONSAFEPATH": "1"},  # never import from the working directory
            )
            undo.callback(popen.wait)
            undo.callback(popen.kill)
            pidfd = os.pidfd_open(popen.pid)
            undo.pop_all()
        return cls(popen, pidfd, ours)

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def reaped(self) -> bool:
        return self._popen.returncode is not None

    def kill(self) -> None:
        """SIGKILL to the child and to whatever it has started (its process group)."""
        if not self.reaped:
            with contextlib.suppress(ProcessLookupError):  # it has ended, but is not reaped yet
                os.killpg(self.pid, signal.SIGKILL)

    @property
    def group_alive(self) -> bool:
        """Whether the child, or a process that it has started, still runs (its process group)."""
        try:
            os.killpg(self.pid, 0)
        except ProcessLookupError:
            return False
        return any(_runs_in(self.pid, stat) for stat in Path("/proc").glob("[0-9]*/stat"))

    async def wait(self) -> int:
        """Wait for the end and reap: the exit status, or minus the signal's number."""
        if self._popen.poll() is None:
            await _readable(self._pidfd)
        return self._popen.wait()

    def close(self) -> None:
        """Release the descriptors; the socket is its channel's. A child that has not been waited for is killed."""
        if not self.reaped:
            self.kill()
            self._popen.wait(_KILL_S)
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1


def _runs_in(group: int, stat: Path) -> bool:
    """Whether a process is of a group and has not ended: proc(5), behind the name in brackets state, parent and group."""
    try:
        state, _, own = stat.read_bytes().rpartition(b")")[2].split()[:3]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return int(own) == group and state not in (b"Z", b"X")


async def _readable(descriptor: int) -> None:
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()

    def wake() -> None:
        loop.remove_reader(descriptor)
        if not ready.done():
            ready.set_result(None)

    loop.add_reader(descriptor, wake)
    try:
        await ready
    finally:
        loop.remove_reader(descriptor)


def describe_status(status: int) -> str:
    """An exit status for people: "exit code 70" or "signal SIGKILL"."""
    if status >= 0:
        return f"exit code {status}"
    try:
        return f"signal {signal.Signals(-status).name}"
    except ValueError:
        return f"signal {-status}"
