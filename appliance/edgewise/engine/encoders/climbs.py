"""Encoders that get quicker while they serve: what building candidates takes is booked beside the model."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol, runtime_checkable

from edgewise.core.errors import OutOfMemory
from edgewise.core.sizes import mib
from edgewise.engine.ledger import Ledger, available_memory

PURPOSE = "climb"
SPARE = 512 << 20
"""What stays free beside a climb."""


@runtime_checkable
class Improves(Protocol):
    """An encoder that can be improved beside requests."""

    def improve(self, book: Callable[[int], Callable[[], None]]) -> None:
        """Begin, and return at once.

        Args:
            book: Books bytes for it and returns what gives them back, from any thread; raises `OutOfMemory`.
        """


def start_climb(encoder: object, ledger: Ledger) -> None:
    """Let an encoder improve itself, if it can and there is memory."""
    if isinstance(encoder, Improves):
        encoder.improve(partial(_book, ledger))


def _book(ledger: Ledger, size: int) -> Callable[[], None]:
    free = available_memory()
    if free < size + SPARE:
        raise OutOfMemory(
            f"building candidates takes {mib(size)} beside {mib(SPARE)} that stay free, and {mib(free)} are free"
        )
    ledger.book(PURPOSE, size)
    return partial(ledger.free, PURPOSE)
