"""Our end of a pseudo-terminal, which may hand over what a program printed in any number of pieces."""

from __future__ import annotations

import os
import time


def read_until(descriptor: int, mark: bytes) -> bytes:
    """What comes up to and with `mark`, after which the program must be silent."""
    shown, deadline = b"", time.monotonic() + 120
    while not shown.endswith(mark):
        assert time.monotonic() < deadline, shown
        piece = _read(descriptor)
        assert piece, shown
        shown += piece
    return shown


def drain(descriptor: int) -> bytes:
    """What is left once the program has ended."""
    shown = b""
    while piece := _read(descriptor):
        shown += piece
    return shown


def _read(descriptor: int) -> bytes:
    """Some bytes; none once nobody has the other end open any more."""
    try:
        return os.read(descriptor, 1024)
    except OSError:  # how Linux says so
        return b""
