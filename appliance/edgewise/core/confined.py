"""A child process that answers one request after the other under limits of the kernel, and what runs inside of it.

For work on what strangers send (templates, media): code that may loop for ever, ask for gigabytes or die. Frames on standard
input and output: length (u32, little-endian), then the body. The process ends with its input, so it cannot outlive its parent.
"""

from __future__ import annotations

import os
import resource
import select
import signal
import struct
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import IO, Any, BinaryIO, Final

from edgewise.core.python import module_command

FRAME: Final = struct.Struct("<I")  # length of the body that follows
_PIECE: Final = 1 << 20


class ChildEndedError(Exception):
    """The process ended instead of answering, or answered too late. `status`: as of `subprocess.Popen.returncode`."""

    def __init__(self, status: int) -> None:
        super().__init__(f"its process ended with status {status}")
        self.status = status

    @property
    def out_of_time(self) -> bool:
        """Whether it was ended by its limit of CPU time."""
        return self.status == -signal.SIGPROF


class ConfinedChild:
    """One process and the lock around it: started when first needed, replaced when it has ended.

    `ask` may be called from any thread.

    Args:
        module: What runs; named, not imported. Its `main` calls `serve`.
        wall_s: Longest wait for one answer, for a machine that gives the process no CPU time.
    """

    def __init__(self, module: str, *, wall_s: float) -> None:
        self._module = module
        self._wall_s = wall_s
        self._lock = threading.Lock()
        self._abandoned = False
        self._process: subprocess.Popen[bytes] | None = None
        self._finalizer: weakref.finalize[Any, Any] | None = None

    def __repr__(self) -> str:
        return f"ConfinedChild({self._module}, pid={self.pid})"

    @property
    def pid(self) -> int | None:
        """Process id while one is running or has just ended."""
        return self._process.pid if self._process is not None else None

    def start(self) -> None:
        """Start the process if none runs, without waiting for it to be ready."""
        with self._lock:
            self._running()

    def close(self) -> None:
        """End the process. A later request starts a new one."""
        with self._lock:
            self._drop()

    def abandon(self) -> None:
        """Kill the process without waiting for the lock: a request under way fails and is not tried again."""
        self._abandoned = True
        if (process := self._process) is not None:
            process.kill()

    def ask(self, body: bytes) -> bytes:
        """Send one request and wait for its answer.

        Raises:
            ChildEndedError: The process was stopped by its limits or by `abandon`, gave no answer within `wall_s`, or ended twice
                for another reason.
        """
        with self._lock:
            self._abandoned = False
            deadline = time.monotonic() + self._wall_s
            for attempt in range(2):
                process = self._running()
                answer = _exchange(process, body, deadline)
                if answer is not None:
                    return answer
                self._drop()
                # Someone else may have ended the process (memory killer, service manager): that is no verdict.
                stopped = process.returncode == -signal.SIGPROF or self._abandoned
                if stopped or attempt or time.monotonic() >= deadline:
                    break
            raise ChildEndedError(process.returncode)

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is None:
            return self._process
        self._drop()
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(module_command(self._module), stdin=pipe, stdout=pipe, bufsize=0)
        assert self._process.stdin is not None
        os.set_blocking(self._process.stdin.fileno(), False)  # a process that reads nothing must not hold its caller
        self._finalizer = weakref.finalize(self, _end, self._process)
        return self._process

    def _drop(self) -> None:
        if self._finalizer is not None:
            self._finalizer()
        self._process = self._finalizer = None


def serve(answer: Callable[[bytes], bytes], *, address_space: int, cpu_s: float) -> None:
    """Answer requests until standard input ends. Runs in the child.

    Args:
        address_space: Bytes; beyond it there is a MemoryError, which `answer` reports.
        cpu_s: CPU time for one request; SIGPROF ends the process then, and the parent sees that.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's business
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = address_space if hard == resource.RLIM_INFINITY else min(address_space, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    while (body := read_frame(sys.stdin.buffer)) is not None:
        signal.setitimer(signal.ITIMER_PROF, cpu_s)
        reply = answer(body)
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        write_frame(sys.stdout.buffer, reply)


def read_frame(stream: BinaryIO) -> bytes | None:
    """The next frame; None when the stream ends, also in the middle of a frame."""
    head = stream.read(FRAME.size)
    if len(head) < FRAME.size:
        return None
    body = stream.read(FRAME.unpack(head)[0])
    return None if len(body) < FRAME.unpack(head)[0] else body


def write_frame(stream: BinaryIO, body: bytes) -> None:
    stream.write(FRAME.pack(len(body)))
    stream.write(body)
    stream.flush()


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill, reap and close; also runs when the owner is collected and at interpreter exit."""
    process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            stream.close()


def _exchange(process: subprocess.Popen[bytes], body: bytes, deadline: float) -> bytes | None:
    """One request and its answer; None if the process ended or gave none in time."""
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        for part in (FRAME.pack(len(body)), body):
            if not _write(process.stdin, part, deadline):
                return None
        head = _read(process.stdout, FRAME.size, deadline)
        return None if head is None else _read(process.stdout, FRAME.unpack(head)[0], deadline)
    except BrokenPipeError:  # it ended while we wrote; its exit status says why
        return None


def _write(stream: IO[bytes], part: bytes, deadline: float) -> bool:
    left = memoryview(part)
    while left:
        if not _ready(stream, select.POLLOUT, deadline):
            return False
        left = left[stream.write(left[:_PIECE]) or 0 :]
    return True


def _read(stream: IO[bytes], count: int, deadline: float) -> bytes | None:
    parts: list[bytes] = []
    while count:
        part = stream.read(min(count, _PIECE)) if _ready(stream, select.POLLIN, deadline) else b""
        if not part:
            return None
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def _ready(stream: IO[bytes], event: int, deadline: float) -> bool:
    """Whether it can be read or written, or has ended, before the deadline."""
    poll = select.poll()  # `select.select` takes no file above number 1023, and a busy service has more connections
    poll.register(stream, event)
    return bool(poll.poll(1000.0 * max(0.0, deadline - time.monotonic())))
