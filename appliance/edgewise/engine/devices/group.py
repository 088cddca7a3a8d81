"""The leader's side of a group: the processes of the other members, started, told what to do, watched and ended.

A member that ends takes its share of the model and of every KV page with it, so the whole engine ends with it and is started
again; requests go on then from the tokens that were delivered, as after any crash.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import torch

from edgewise.core.errors import EngineFault
from edgewise.core.log import get_logger, logging_in_force
from edgewise.core.python import module_command
from edgewise.engine.core import CoreLost
from edgewise.engine.devices import place
from edgewise.engine.devices.link import Gone, Link
from edgewise.engine.devices.messages import (
    CloseAdapter,
    Failed,
    Join,
    Joined,
    Leave,
    Loaded,
    OpenAdapter,
    Share,
    ToLeader,
    decode_to_leader,
)
from edgewise.engine.heartbeat import resident_bytes_of
from edgewise.engine.messages import Message, error_from
from edgewise.engine.process import describe_status
from edgewise.kernels.rows import Rows
from edgewise.models.adapters.files import AdapterFiles

STDERR = 2
_NOTICE_S = 2.0
"""How long an exchange that broke off waits for the end of the member that it broke off with, and a stuck one is waited for."""
_LEAVE_S = 5.0

T = TypeVar("T", bound=ToLeader)

log = get_logger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class Member:
    """One of the other processes."""

    rank: int
    popen: subprocess.Popen[bytes]
    pidfd: int
    link: Link[ToLeader]

    def ended(self, timeout_s: float) -> str | None:
        """How it ended, if it does so in time."""
        try:
            return describe_status(self.popen.wait(timeout_s))
        except subprocess.TimeoutExpired:
            return None


class DeviceGroup:
    """Processes of ranks 1 to `size` - 1; the leader's is 0.

    They are started from the thread that calls `start`, and the kernel ends them when it ends. All methods are for that thread,
    but `resident_bytes`.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._device = torch.device("cpu")
        self._meeting = os.memfd_create("edgewise-devices")
        self._members: list[Member] = []
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._watcher = threading.Thread(target=self._watch, name="device-watch", daemon=True)
        self._lost: Callable[[str], None] | None = None
        self._known = threading.Event()
        self._closed = False

    def __repr__(self) -> str:
        return f"DeviceGroup({self.size} on {self._device.type}, pids {self.pids})"

    @property
    def pids(self) -> list[int]:
        """Of the other members' processes."""
        return [member.popen.pid for member in self._members]

    @property
    def meeting(self) -> str:
        """File over which the members find each other; it has no name on disk that could be left behind."""
        return f"/proc/{os.getpid()}/fd/{self._meeting}"

    def start(self, device: torch.device, share_of: Callable[[int], Share]) -> None:
        """Start the other members, which load their shares meanwhile.

        Args:
            device: The leader's own.
            share_of: The first message to each rank.

        Raises:
            EngineFault: The system starts no more processes, or has no descriptor left.
        """
        self._device = device
        try:
            for rank in range(1, self.size):
                self._members.append(_spawn(rank))
                self._members[-1].link.send(share_of(rank))
        except OSError as error:
            raise EngineFault(f"No process could be started for device {rank} of {self.size}: {error}.") from error
        self._watcher.start()

    def join(self, rows: Rows) -> bool:
        """Wait until all have loaded their shares, and meet them.

        Args:
            rows: By which the leader computes products, and the others will.

        Returns:
            Whether rows keep their bits under it everywhere.

        Raises:
            EdgewiseError: What kept a member from loading.
        """
        with self.watched():
            for member in self._members:
                self.answer(member.rank, Loaded)
            self.tell_all(Join(multiple=rows.multiple, tile=rows.tile))
            place.join(self._device, 0, self.size, self.meeting)
            proven = [self.answer(member.rank, Joined).proven for member in self._members]
        log.info("devices_joined", devices=self.size, kind=self._device.type, pids=self.pids)
        return all(proven) and rows.proven

    def tell(self, rank: int, message: Message) -> None:
        """Raises the member's error where it has ended."""
        with self.watched():
            self._members[rank - 1].link.send(message)

    def tell_all(self, message: Message) -> None:
        with self.watched():
            for member in self._members:
                member.link.send(message)

    def open_adapter(self, files: AdapterFiles) -> None:
        """Have the others read their shares of an adapter; the leader has found it whole."""
        self.tell_all(OpenAdapter(files=files))

    def close_adapter(self, digest: str) -> None:
        self.tell_all(CloseAdapter(digest=digest))

    def answer(self, rank: int, kind: type[T]) -> T:
        """The next message of a member.

        Raises:
            EdgewiseError: It has failed or ended.
        """
        with self.watched():
            message = self._members[rank - 1].link.receive()
        if isinstance(message, Failed):
            raise self._failed(rank, message)
        if not isinstance(message, kind):
            raise EngineFault(f"Device {rank} of {self.size} answered {type(message).__name__}, not {kind.__name__}.")
        return message

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Whatever breaks off inside because a member has ended is raised as that member's end."""
        try:
            yield
        except (RuntimeError, Gone) as error:
            until = time.monotonic() + _NOTICE_S
            while time.monotonic() < until and not any(member.popen.poll() is not None for member in self._members):
                time.sleep(0.01)
            for member in self._members:
                if member.ended(0.0) is not None:
                    self._known.set()
                    raise self._end_of(member) from error
            raise

    def guard(self, lost: Callable[[str], None]) -> None:
        """Have `lost` called, by another thread, where a member ends and the leader's own has not noticed: it waits for work, or
        for an exchange that never ends. From now on the leader's thread raises `CoreLost` where it notices."""
        self._lost = lost

    def resident_bytes(self) -> int:
        """Of the other members' processes together."""
        return sum(resident_bytes_of(pid) for pid in self.pids)

    def close(self) -> None:
        """End the other members, by force after a while."""
        if self._closed:
            return
        self._closed = True
        os.eventfd_write(self._wake, 1)
        place.part()
        for member in self._members:
            with contextlib.suppress(Gone):  # it has ended already
                member.link.send(Leave())
        for member in self._members:
            if member.ended(_LEAVE_S) is None:
                log.error("device_does_not_leave", rank=member.rank, pid=member.popen.pid)
                member.popen.send_signal(signal.SIGKILL)
                member.popen.wait()
            member.link.close()
        if self._watcher.is_alive():
            self._watcher.join()
        for member in self._members:
            os.close(member.pidfd)
        os.close(self._wake)
        os.close(self._meeting)

    def _watch(self) -> None:
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        for member in self._members:
            poll.register(member.pidfd, select.POLLIN)
        ready = {descriptor for descriptor, _ in poll.poll()}
        ended = [member for member in self._members if member.pidfd in ready]
        if self._closed or not ended or self._known.wait(_NOTICE_S) or self._closed:
            return
        reason = f"The process of device {ended[0].rank} of {self.size} has ended, and its share of the model with it."
        log.error("device_lost", rank=ended[0].rank, pid=ended[0].popen.pid)
        if self._lost is not None:
            self._lost(reason)

    def _end_of(self, member: Member) -> Exception:
        """Its last words, if it had any."""
        with contextlib.suppress(Gone):
            while True:
                message = member.link.receive()
                if isinstance(message, Failed):
                    return self._failed(member.rank, message)
        return CoreLost(
            f"The process of device {member.rank} of {self.size} has ended ({member.ended(0.0)}), and its share of the model "
            "with it."
        )

    def _failed(self, rank: int, message: Failed) -> Exception:
        """Its own error while it loads, which says whether another try can help; later it would be taken for a request's."""
        self._known.set()
        log.error("device_failed", rank=rank, code=message.code, reason=message.message, traceback=message.traceback)
        told = f"Device {rank} of {self.size}: {message.message}"
        return error_from(message.code, told) if self._lost is None else CoreLost(told)


def _spawn(rank: int) -> Member:
    """Start `python -m edgewise.engine.devices.member`; its output goes to our standard error."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with theirs, contextlib.ExitStack() as undo:
        undo.callback(ours.close)
        level, form = logging_in_force()
        command = [*module_command("edgewise.engine.devices.member"), "--fd", str(theirs.fileno())]
        command += ["--parent", str(os.getpid()), "--rank", str(rank), "--log-level", level, "--log-format", form]
        popen = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=STDERR,
            pass_fds=(theirs.fileno(),),
            env=os.environ | {"PYTHONSAFEPATH": "1"},  # never import from the working directory
        )
        undo.callback(popen.wait)
        undo.callback(popen.kill)
        pidfd = os.pidfd_open(popen.pid)
        undo.pop_all()
    return Member(rank, popen, pidfd, Link(ours, decode_to_leader))
