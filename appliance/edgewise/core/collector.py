"""The garbage collector and what a process never gives back."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def lasting() -> Iterator[None]:
    """For blocks that import: what they make lives as long as the process, so the collector does not look through it.

    Importing a service makes some 300,000 objects; looking for garbage among them takes a tenth of its start, and again a
    part of a second at every full collection afterwards, in which nothing else runs. Where the caller has switched the
    collector off, it stays so.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        if collects:
            gc.enable()
