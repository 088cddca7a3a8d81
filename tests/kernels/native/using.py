"""Native kernels with another instruction set and other threads, for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from edgewise.kernels.native import library


@contextmanager
def using(isa: str, threads: int = 1) -> Iterator[None]:
    before = library.isa(), library.threads()
    library.use_isa(isa)
    library.set_threads(threads)
    try:
        yield
    finally:
        library.use_isa(before[0])
        library.set_threads(before[1])
