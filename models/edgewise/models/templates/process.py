"""The parent's side of the render process: started when first needed, replaced when a template was stopped."""

from __future__ import annotations

import json
import select
import signal
import subprocess
import threading
import time
import weakref
from typing import IO, Any

from edgewise.core.errors import TemplateFailed
from edgewise.core.python import module_command
from edgewise.models.templates.limits import CPU_SECONDS, FRAME, WALL_SECONDS

_WORKER = "edgewise.models.templates.worker"
"""Named, not imported: importing it would load Jinja into this process."""


class RenderProcess:
    """One render process and the lock around it. `render` may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._finalizer: weakref.finalize[Any, Any] | None = None

    def __repr__(self) -> str:
        return f"RenderProcess(pid={self._process.pid if self._process else None})"

    @property
    def pid(self) -> int | None:
        """Process id while one is running or has just ended."""
        return self._process.pid if self._process is not None else None

    def start(self) -> None:
        """Start the process if none runs, without waiting for it to be ready."""
        with self._lock:
            self._running()

    def close(self) -> None:
        """End the process. A later render starts a new one."""
        with self._lock:
            self._drop()

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Send one request and wait for its answer.

        Raises:
            TemplateFailed: The process was stopped by its limits, or ended twice for another reason.
        """
        frame = _pack(request)
        with self._lock:
            for attempt in range(2):
                process = self._running()
                answer = _exchange(process, frame)
                if answer is not None:
                    return answer
                self._drop()
                # Someone else may have ended the process (memory killer, service manager): that is no verdict.
                if process.returncode == -signal.SIGPROF or attempt:
                    break
            raise TemplateFailed(_why(process.returncode))

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is None:
            return self._process
        self._drop()
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(module_command(_WORKER), stdin=pipe, stdout=pipe, bufsize=0)
        self._finalizer = weakref.finalize(self, _end, self._process)
        return self._process

    def _drop(self) -> None:
        if self._finalizer is not None:
            self._finalizer()
        self._process = self._finalizer = None


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill, reap and close; also runs when the owner is collected and at interpreter exit."""
    process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            stream.close()


def _pack(request: dict[str, Any]) -> bytes:
    body = json.dumps(request).encode()  # ASCII: half surrogate pairs survive as escapes
    return FRAME.pack(len(body)) + body


def _exchange(process: subprocess.Popen[bytes], frame: bytes) -> dict[str, Any] | None:
    """One request and its answer; None if the process ended or gave none within `WALL_SECONDS`."""
    assert process.stdin is not None
    assert process.stdout is not None
    deadline = time.monotonic() + WALL_SECONDS
    try:
        left = memoryview(frame)
        while left:
            left = left[process.stdin.write(left) :]
        head = _read(process.stdout, FRAME.size, deadline)
        body = None if head is None else _read(process.stdout, FRAME.unpack(head)[0], deadline)
    except BrokenPipeError:  # it ended while we wrote; its exit status says why
        return None
    if body is None:
        return None
    answer: dict[str, Any] = json.loads(body)
    return answer


def _read(stream: IO[bytes], count: int, deadline: float) -> bytes | None:
    parts: list[bytes] = []
    while count:
        ready, _, _ = select.select([stream], [], [], max(0.0, deadline - time.monotonic()))
        part = stream.read(count) if ready else b""
        if not part:
            return None
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def _why(status: int) -> str:
    if status == -signal.SIGPROF:
        return f"The model's chat template was stopped after {CPU_SECONDS:g} s of CPU time: it may loop for ever."
    return f"The model's chat template could not be rendered: its process ended with status {status}."
