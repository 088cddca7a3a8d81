"""Services and engines without their imports: a process that has imported everything forks them, for the suite alone.

Imports are more than half of what a service and its engine cost until their first answer, and the suite starts hundreds. Once
`NURSERY` is open, `subprocess.Popen` has the `edgewise` command and engines forked by that process instead of executed. What is
forked is a process like any other: a child of whoever asked, with its own descriptors, session, environment, directory and
command line, to be killed and waited for. The process that forks has one thread, has computed nothing and holds nothing open.

Executed as ever is everything else, whatever has another environment than the tests (but for settings of Edgewise), and all
inside of `executed()`, for tests of what a process holds. Outside of pytest nothing is forked: `make accept` executes all.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import inspect
import io
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from fcntl import F_DUPFD_CLOEXEC, fcntl
from pathlib import Path
from typing import Any

ENGINE = "edgewise.engine.worker"
MODULES = (ENGINE, "edgewise.cli.main")
IMPORTED = (
    *("edgewise.cli.main", "edgewise.cli.serve", "edgewise.cli.cloud", "edgewise.cli.models", "edgewise.cli.fleet"),
    *("edgewise.edge.app", "edgewise.cloud.app", "edgewise.cloud.fleet.serve", "torch", "edgewise.engine.omni.build"),
)
ANEW = (
    *("edgewise.edge.app", "edgewise.edge.agent.part", "edgewise.edge.agent.facts", "edgewise.edge.agent.presence"),
)
"""Modules that draw what a process is known by when they are imported, and those that take it from them."""
OWN_VARIABLES = ("EDGEWISE_", "PYTEST_", "PYTHONSAFEPATH", "COLUMNS", "NO_COLOR", "TORCHINDUCTOR_CACHE_DIR")
"""Beginnings of variables that change nothing of what was imported; the last one is set by torch itself."""
_DEATH = ["setpriv", "--pdeathsig", "TERM", "--"]
_ROOM = "-" * 4000
"""An argument whose place the command lines of what is forked take."""
_PR_SET_PDEATHSIG, _PR_SET_NAME, _PR_SET_MM, _PR_SET_MM_ARG_END, _PR_SET_CHILD_SUBREAPER = 1, 15, 35, 9, 36
_libc = ctypes.CDLL(None)


@dataclass(frozen=True)
class Job:
    """A process that is wanted.

    Attributes:
        command: Its command line as /proc shows it.
        module: What runs as `__main__`; None: the `edgewise` command.
        fds: Numbers under which it finds the descriptors that are sent along.
        parent: Id of the process that asks.
        session: Whether it begins a session.
        death: Signal that it gets when its parent ends, or 0.
    """

    command: list[str]
    module: str | None
    environment: dict[str, str]
    folder: str
    fds: list[int]
    parent: int
    session: bool
    death: int

    @property
    def arguments(self) -> list[str]:
        return self.command[2 if self.module is None else self.command.index(self.module) + 1 :]


Fork = Callable[[Job, Sequence[int]], "int | None"]


# --- Whoever asks ---


def in_place_of_exec(fork: Fork) -> None:
    """Have every `Popen` of this process ask `fork(job, descriptors)` for a process's id first; None: it is executed."""
    original: Any = subprocess.Popen._execute_child  # type: ignore[attr-defined]
    signature = inspect.signature(original)
    began = dict(os.environ)

    def execute_child(self: Any, *args: Any, **named: Any) -> None:
        call = signature.bind(self, *args, **named).arguments
        found = job_of(call, began)
        pid = fork(*found) if found is not None else None
        if pid is None:
            original(self, *args, **named)
            return
        self.pid, self._child_created = pid, True
        self._close_pipe_fds(*(call[name] for name in PIPES))

    subprocess.Popen._execute_child = execute_child  # type: ignore[attr-defined]


PIPES = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")


def job_of(call: dict[str, Any], began: dict[str, str]) -> tuple[Job, list[int]] | None:
    """The job that arguments of `Popen._execute_child` mean, and its descriptors; None: it is to be executed."""
    usual = {
        "preexec_fn": None,
        "shell": False,
        "gid": None,
        "gids": None,
        "uid": None,
        "umask": -1,
        "process_group": -1,
    }
    if isinstance(call["args"], (str, bytes, os.PathLike)) or not call["close_fds"]:
        return None
    if any(call.get(name, value) != value for name, value in usual.items()):
        return None
    command = [os.fsdecode(part) for part in call["args"]]
    death = signal.SIGTERM if command[:4] == _DEATH else 0
    command = command[4:] if death else command
    module = None
    if command[0] == str(Path(sys.executable).with_name("edgewise")):
        command = [sys.executable, *command]  # as the kernel reads the script's first line
    elif command[0] == sys.executable and "-m" in command[1:3] and command[command.index("-m") + 1] in MODULES:
        module = command[command.index("-m") + 1]
    else:
        return None
    if "ray" in command:  # it looks at the program that it is in
        return None
    given = os.environ if call["env"] is None else call["env"]
    environment = {os.fsdecode(name): os.fsdecode(value) for name, value in given.items()}
    if any(
        environment.get(name) != began.get(name) and not name.startswith(OWN_VARIABLES)
        for name in {*environment, *began}
    ):
        return None
    fds = {0: call["p2cread"], 1: call["c2pwrite"], 2: call["errwrite"]}
    fds = {number: number if fd == -1 else fd for number, fd in fds.items()} | {fd: fd for fd in call["pass_fds"]}
    folder = str(Path.cwd()) if call["cwd"] is None else os.fsdecode(call["cwd"])
    job = Job(command, module, environment, folder, list(fds), os.getpid(), bool(call["start_new_session"]), int(death))
    return job, list(fds.values())


def ask(sock: socket.socket, job: Job, fds: Sequence[int]) -> int | None:
    """Have a process forked; its id once it is what the job says. None: it could not be."""
    ours, theirs = os.pipe()
    try:
        socket.send_fds(sock, [json.dumps(asdict(job)).encode()], [theirs, *fds])
    except OSError:
        os.close(ours)
        return None
    finally:
        os.close(theirs)
    with os.fdopen(ours, "rb") as reply:
        said = reply.read()
    return int(said) if said else None


class Nursery:
    """The process that forks for this one; begun when first asked."""

    def __init__(self) -> None:
        self.on = False
        self._lock = threading.Lock()
        self._sock: socket.socket | None = None
        self._environment: dict[str, str] = {}

    def open(self) -> None:
        """Fork from now on, where all libraries compute with one thread and the interpreter is one that this knows.

        Call it once all is imported: libraries set variables.
        """
        if os.environ.get("OMP_NUM_THREADS") == "1" and hasattr(subprocess.Popen, "_close_pipe_fds"):
            self.on = True
            # Telemetry of ONNX Runtime is a thread.
            self._environment = {**os.environ, "ORT_DISABLE_TELEMETRY": "1"}
            in_place_of_exec(self.fork)

    def fork(self, job: Job, fds: Sequence[int]) -> int | None:
        with self._lock:
            if not self.on:
                return None
            if self._sock is None:
                self._begin()
            if self._sock is None:
                return None
            _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # who is forked is an orphan at once, and then ours
            try:
                return ask(self._sock, job, fds)
            finally:
                _libc.prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)

    def _begin(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-P", __file__, str(theirs.fileno()), _ROOM]
        with theirs:
            self._process = subprocess.Popen(
                command, pass_fds=(theirs.fileno(),), stdin=subprocess.DEVNULL, env=self._environment, cwd="/"
            )
        if ours.recv(16) == b"ready":
            self._sock = ours
        else:
            self.on = False  # it has said why

    @contextmanager
    def executed(self) -> Iterator[None]:
        """Inside of the block nothing is forked."""
        before, self.on = self.on, False
        try:
            yield
        finally:
            self.on = before


NURSERY = Nursery()


# --- What is forked ---


class Sapling:
    """One process forked ahead, while this one has a single thread: the first engine of a service."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.asked: tuple[Job, list[int]] | None = None
        self._sock: socket.socket | None = ours
        if os.fork():
            theirs.close()
            return
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        ours.close()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        for fd in range(3):
            os.close(fd)  # whoever reads what the service writes is not to wait for this one
        self.asked = receive(theirs)
        if self.asked is None:
            os._exit(0)
        theirs.close()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        _libc.prctl(_PR_SET_PDEATHSIG, 0, 0, 0, 0)

    def fork(self, job: Job, fds: Sequence[int]) -> int | None:
        if job.module != ENGINE or self._sock is None:
            return None
        sock, self._sock = self._sock, None
        with sock:
            return ask(sock, job, fds)


def receive(sock: socket.socket) -> tuple[Job, list[int]] | None:
    """The next job with its descriptors, that of the reply first; None when nobody asks any more."""
    body, fds, _, _ = socket.recv_fds(sock, 1 << 20, 64)
    return (Job(**json.loads(body)), fds) if body else None


def forked(sock: socket.socket) -> tuple[Job, list[int]]:
    """Fork until nobody asks any more; returns only in what is forked, as a child of whoever asked."""
    while (asked := receive(sock)) is not None:
        between = os.fork()
        if between == 0:
            between = os.getpid()
            if os.fork():
                os._exit(0)
            while os.getppid() == between:
                time.sleep(0.0005)
            if os.getppid() != asked[0].parent:
                os._exit(1)  # nobody is told of it
            sock.close()
            return asked
        for fd in asked[1]:
            os.close(fd)
        os.waitpid(between, 0)
    os._exit(0)


def become(job: Job, fds: Sequence[int]) -> None:
    """Make this process, which was just forked, what the job says, and tell that it is."""
    if job.session:
        os.setsid()
    reply, *sent = [fcntl(fd, F_DUPFD_CLOEXEC, 1000) for fd in fds]
    for fd, number in zip(sent, job.fds, strict=True):
        os.dup2(fd, number)
    kept = sorted({*job.fds, reply})
    for below, above in zip(kept, [*kept[1:], 1 << 16], strict=True):
        os.closerange(below + 1, above)
    os.chdir(job.folder)
    os.environ.clear()
    os.environ.update(job.environment)
    if job.death:
        _libc.prctl(_PR_SET_PDEATHSIG, job.death, 0, 0, 0)
    sys.argv[:] = [job.module or job.command[1], *job.arguments]
    _show(job.command)
    _open_streams()
    for name in ANEW:
        package, _, own = name.rpartition(".")
        if sys.modules.pop(name, None) is not None:
            delattr(sys.modules[package], own)
    with os.fdopen(reply, "wb") as telling:
        telling.write(str(os.getpid()).encode())


def _show(command: Sequence[str]) -> None:
    """Have /proc show a command line, and the name of its program; empty words follow where the kernel lets nobody shorten it."""
    fields = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
    begin, end = int(fields[45]), int(fields[46])  # arg_start and arg_end of proc(5)
    line = b"\0".join(map(os.fsencode, command)) + b"\0"
    if begin + len(line) > end:
        raise ValueError(f"a command line of {len(line)} bytes, where there is room for {end - begin}")
    ctypes.memset(begin, 0, end - begin)
    ctypes.memmove(begin, line, len(line))
    _libc.prctl(_PR_SET_MM, _PR_SET_MM_ARG_END, ctypes.c_ulong(begin + len(line)), 0, 0)
    program = command[1] if command[1].endswith("edgewise") else command[0]
    _libc.prctl(_PR_SET_NAME, Path(program).name.encode(), 0, 0, 0)


def _open_streams() -> None:
    """Standard streams as an interpreter opens them."""
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    for number, name in ((1, "stdout"), (2, "stderr")):
        raw = io.FileIO(number, "w", closefd=False)
        lines, errors = (True, "backslashreplace") if number == 2 else (raw.isatty(), "strict")
        stream = io.TextIOWrapper(io.BufferedWriter(raw), encoding="utf-8", errors=errors, line_buffering=lines)
        setattr(sys, name, stream)


def run(job: Job) -> None:
    if job.module is not None:
        runpy.run_module(job.module, run_name="__main__", alter_sys=True)
    else:
        importlib.import_module("edgewise.cli.main").main()


def prepare() -> None:
    """Import all, under what libraries read when an engine loads them."""
    child = importlib.import_module("edgewise.engine.child")
    child.limit_threads(1)
    child.limit_caches()
    gc.disable()
    for name in IMPORTED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    gc.enable()


def main() -> None:
    sock = socket.socket(fileno=int(sys.argv[1]))
    prepare()
    if (threads := len(list(Path("/proc/self/task").iterdir()))) != 1:
        raise SystemExit(f"imports have started threads, there are {threads}: this process cannot be forked")
    sock.sendall(b"ready")
    job, fds = forked(sock)
    become(job, fds)
    if job.module is None and job.arguments[:1] in (["serve"], ["cloud"]):
        sapling = Sapling()
        if sapling.asked is not None:
            job, fds = sapling.asked
            become(job, fds)
        else:
            in_place_of_exec(sapling.fork)
    run(job)


if __name__ == "__main__":
    main()
