"""Encoders that get quicker while they serve: what building candidates takes is booked beside the model, and the service is told
when it begins and ends."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, Protocol, runtime_checkable

from edgewise.core.errors import OutOfMemory
from edgewise.core.sizes import mib
from edgewise.engine.ledger import Ledger, available_memory
from edgewise.engine.notices import Notices

PURPOSE: Final = "climb"
SPARE: Final = 512 << 20
"""What stays free beside a climb."""
BEGUN, ENDED = "encoder_climb_begun", "encoder_climb_ended"
"""Notices: a model that gets quicker is not unloaded for want of requests (`engine.pool`), since the climb would end with it."""


@runtime_checkable
class Improves(Protocol):
    """An encoder that can be improved beside requests."""

    def improve(self, book: Callable[[int], Callable[[], None]]) -> None:
        """Begin, and return at once.

        Args:
            book: Books bytes for it and returns what gives them back, from any thread; raises `OutOfMemory`.
        """


def start_climb(encoder: object, ledger: Ledger, notices: Notices) -> None:
    """Let an encoder improve itself, if it can and there is memory."""
    if isinstance(encoder, Improves):
        encoder.improve(partial(_book, ledger, notices))


def _book(ledger: Ledger, notices: Notices, size: int) -> Callable[[], None]:
    free = available_memory()
    if free < size + SPARE:
        raise OutOfMemory(
            f"building candidates takes {mib(size)} beside {mib(SPARE)} that stay free, and {mib(free)} are free"
        )
    ledger.book(PURPOSE, size)
    notices.put(BEGUN, "The encoder's candidates are built and measured beside requests.")

    def end() -> None:
        ledger.free(PURPOSE)
        notices.put(ENDED, "The encoder's candidates are measured, or cannot be.")

    return end
