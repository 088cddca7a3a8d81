"""The native library of this process: loading it, what it chose, how many threads it has. Torch-free.

One library is loaded for a process, one instruction set is in use (the best of this processor, or the one that the environment
variable EDGEWISE_NATIVE_ISA names), and one pool of threads computes, for one caller after the other.
"""

from __future__ import annotations

import ctypes
import os
import platform
from functools import cache
from pathlib import Path

ABI_VERSION = 5
NATIVE_NUMERICS = 3
"""Raised when results of the kernels change, with kNumerics in src/abi.h: it is in the numeric class, so pages on disk and
streams of engines before and after are not mixed."""

PATH = Path(__file__).with_name("libedgewise_native.so")
ISA_VARIABLE = "EDGEWISE_NATIVE_ISA"
MAX_THREADS = 64


class NativeUnavailable(RuntimeError):
    """The message says why and what to do."""


@cache
def _load() -> ctypes.CDLL | str:
    """The library, or the reason why it cannot be used."""
    if not PATH.exists():
        return f"{PATH.name} was not built; install g++ and run `python kernels/build_native.py`, or reinstall edgewise"
    try:
        library = ctypes.CDLL(str(PATH))
    except OSError as error:
        return f"{PATH} cannot be loaded: {error}"
    found = library.edgewise_abi_version()
    if found != ABI_VERSION:
        return f"{PATH.name} has version {found} of the interface, {ABI_VERSION} is needed; run `python kernels/build_native.py`"
    found = library.edgewise_numerics()
    if found != NATIVE_NUMERICS:
        return (
            f"{PATH.name} was built of other sources: its results are those of number {found}, not {NATIVE_NUMERICS}; "
            "run `python kernels/build_native.py`"
        )
    library.edgewise_isa.restype = ctypes.c_char_p
    library.edgewise_start.argtypes = [ctypes.c_char_p]
    named = os.environ.get(ISA_VARIABLE, "")
    if library.edgewise_start(named.encode()) != 0:
        return f"{ISA_VARIABLE}={named} is none of the instruction sets compiled for {platform.machine()} that this processor has"
    return library


def why_not() -> str | None:
    """None if native kernels can run here, else the reason and the remedy."""
    loaded = _load()
    return loaded if isinstance(loaded, str) else None


def library() -> ctypes.CDLL:
    """The loaded library; the same object at every call.

    Raises:
        NativeUnavailable: It is missing, cannot be loaded, is of another version or results, or EDGEWISE_NATIVE_ISA is none.
    """
    loaded = _load()
    if isinstance(loaded, str):
        raise NativeUnavailable(f"native kernels are not available: {loaded}")
    return loaded


def isa() -> str:
    """The instruction set in use: "avx512-vnni", "avx2", "neon-i8mm", "neon-dotprod" or "generic".

    Raises:
        NativeUnavailable: See `library`.
    """
    name: bytes = library().edgewise_isa()
    return name.decode()


def use_isa(name: str) -> None:
    """Change the instruction set, "" for the best; for tests and measurements, while nothing computes.

    Raises:
        NativeUnavailable: See `library`.
        ValueError: This processor does not have it, or it is not compiled.
    """
    if library().edgewise_start(name.encode()) != 0:
        raise ValueError(f"{name} is none of the instruction sets of this processor that are compiled in")


def set_threads(count: int) -> None:
    """The size of the pool from now on, the calling thread included; while nothing computes.

    Raises:
        NativeUnavailable: See `library`.
        ValueError: Not 1 to 64.
    """
    if library().edgewise_set_threads(count) != 0:
        raise ValueError(f"threads must be 1 to {MAX_THREADS}, got {count}")


def threads() -> int:
    """The size of the pool.

    Raises:
        NativeUnavailable: See `library`.
    """
    return int(library().edgewise_threads())
