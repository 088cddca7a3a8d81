"""How a process of an engine begins and ends, whichever part of the engine it computes.

It is started by another process of ours, which holds the other end of its socket pair, and it ends with that one.
"""

from __future__ import annotations

import argparse
import ctypes
import faulthandler
import os
import signal
import socket
import sys
import traceback
from pathlib import Path
from typing import Final, NoReturn, get_args

from edgewise.core.errors import EdgewiseError, reason_of
from edgewise.core.log import LogFormat, configure_logging, get_logger

EXIT_FAULT: Final = 70
"""EX_SOFTWARE of sysexits.h: this process raised."""
EXIT_ORPHAN: Final = 69
"""EX_UNAVAILABLE: who started it is gone."""

_PR_SET_PDEATHSIG: Final = 1
_OOM_SCORE: Final = 500

log = get_logger(__name__)


def begin(parser: argparse.ArgumentParser, arguments: list[str] | None) -> tuple[argparse.Namespace, socket.socket]:
    """Read the command line, and bind this process to the one that started it. Call it first, before heavy imports.

    Args:
        parser: With the arguments that only this kind of process has.
        arguments: Without the program's name; None takes those of the process.

    Returns:
        All arguments, and the socket to the process that started this one.

    Raises:
        SystemExit: An argument is missing or unknown.
        OSError: The kernel does not promise to end this process with its parent.
    """
    parser.add_argument("--fd", type=int, required=True, help="inherited end of the socket pair")
    parser.add_argument("--parent", type=int, required=True, help="id of the process that started this one")
    parser.add_argument("--log-level", default="info")
    parser.add_argument("--log-format", default="auto", choices=get_args(LogFormat))
    options = parser.parse_args(arguments)
    _ignore_signals()
    _die_with(options.parent)
    configure_logging(level=options.log_level, format=options.log_format)
    _prefer_as_oom_victim()
    faulthandler.enable()
    sock = socket.socket(fileno=options.fd)
    sock.set_inheritable(False)  # a compiler that is started here must not keep the connection open
    return options, sock


def leave(status: int) -> NoReturn:
    """Exit without the interpreter's tear-down, which waits for native threads and has crashed in drivers."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def last_words(error: Exception) -> dict[str, str]:
    """`code`, `message` and `traceback` of what ends a process, for who started it."""
    code = error.code if isinstance(error, EdgewiseError) else "engine_error"
    return {"code": code, "message": reason_of(error), "traceback": "".join(traceback.format_exception(error))}


def limit_threads(count: int) -> None:
    """Set the thread count of OpenMP, MKL and OpenBLAS; effective only before they are loaded.

    A thread that waits for another spins first. GNU OpenMP's own default spins for milliseconds, and as soon as any other
    program wants a core it burns exactly the time that the awaited thread needs (measured: a product 25 times slower beside
    other work). A short spin, then sleep, costs next to nothing on an idle machine.
    """
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = str(count)
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "10000")


def limit_caches() -> None:
    """Bound what oneDNN and torch keep for every shape of product they meet; effective only before they are loaded.

    The default of 1,024 entries is memory that no ledger books (measured: 300 MB on a tiny model after 4,000 requests).
    `kernels.rows` keeps the number of different shapes below this bound, so it costs no speed.
    """
    for name in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
        os.environ.setdefault(name, "192")


def _ignore_signals() -> None:
    """The service decides when an engine ends: a Ctrl-C or a SIGTERM to the whole group must not cut what is being drained."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _die_with(parent: int) -> None:
    """Have the kernel kill this process when the thread that started it ends (prctl(2), PR_SET_PDEATHSIG).

    The parent may have died before the call; then this process has been handed to another parent already, and exits.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:
        os._exit(EXIT_ORPHAN)


def _prefer_as_oom_victim() -> None:
    """Let the kernel kill the engine, which is restarted and resumed, before the service (proc(5), oom_score_adj)."""
    path = Path("/proc/self/oom_score_adj")
    try:
        if int(path.read_text()) < _OOM_SCORE:
            path.write_text(str(_OOM_SCORE))
    except OSError as error:  # a sandbox without it; the engine works, only the kernel's choice is less good
        log.warning("oom_score_not_raised", reason=error.strerror)
