"""The ledger of media: what requests hold decoded is booked before it is decoded, for a small file may be hours of sound.

Room for decoding is booked when its turn has come: the process does one medium at a time, so callers who wait in line book
nothing, and what is booked and not yet allocated is never more than one medium. What came of it stays booked.

Two limits hold: that of this service (`limits.media_bytes`), for which room is left beside the engines, and what the machine
really has left. Whoever is refused hears which.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from types import TracebackType
from typing import Final

from edgewise.core.errors import EdgewiseError, OutOfMemory, PayloadTooLarge
from edgewise.core.sizes import mib
from edgewise.models.media.process import MediaProcess, Result
from edgewise.models.media.sound_limits import MAX_SECONDS

HELD_BYTES: Final = 512 << 20
"""An hour of sound, or 32 million pixels, while they are decoded, and room for what others hold."""
SETTING: Final = "limits.media_bytes"
FULL: Final = ("request", "service", "machine")
"""What may be full: all that one request is given, all that requests together are, and the machine."""
_RETRY_AFTER_S: Final = 2.0


def held_bytes(limit: int | None, max_seconds: float = MAX_SECONDS) -> int:
    """What media may take: `limit`, or where that is left open, `HELD_BYTES` and more for recordings longer than an hour."""
    return int(HELD_BYTES * max(1.0, max_seconds / MAX_SECONDS)) if limit is None else limit


class HeldBytes:
    """The ledger of a service. All methods run in the event loop.

    Args:
        limit: Bytes of all requests together, and so of each.
        available: What the machine could hand out now; None does not ask.
        spare: Bytes that stay free on the machine.

    Attributes:
        used: Booked now; `peak` is the most that ever was.
        refused: How often, by what was full (`FULL`).
    """

    def __init__(self, limit: int = HELD_BYTES, *, available: Callable[[], int] | None = None, spare: int = 0) -> None:
        self.limit = limit
        self.used = 0
        self.peak = 0
        self.refused: Counter[str] = Counter()
        self._available = available
        self._spare = spare

    def __repr__(self) -> str:
        return f"HeldBytes({self.used} of {self.limit} bytes)"

    def hold(self) -> Hold:
        """What one request holds: nothing yet."""
        return Hold(self)

    def available(self) -> int | None:
        """Bytes that the machine could hand out now; None where nobody asks it."""
        return None if self._available is None else self._available()

    def _book(self, size: int, own: int, param: str) -> None:
        error = self._refusal(size, own, param)
        if error is not None:
            raise error
        self.used += size
        self.peak = max(self.peak, self.used)

    def _refusal(self, size: int, own: int, param: str) -> EdgewiseError | None:
        if own + size > self.limit:
            self.refused["request"] += 1
            return PayloadTooLarge(
                f"With '{param}' the media of this request take {mib(own + size)} of memory, and at most {mib(self.limit)} are "
                f"given ({SETTING}): send fewer or shorter ones.",
                param=param,
            )
        if self.used + size > self.limit:
            self.refused["service"] += 1
            return OutOfMemory(
                f"'{param}' takes {mib(size)} of memory; media of requests in work hold {mib(self.used)}, and the limit of "
                f"this service is {mib(self.limit)} ({SETTING}): try again shortly, or send fewer or shorter media.",
                param=param,
                retry_after_s=_RETRY_AFTER_S,
            )
        free = self.available()
        if free is not None and size > max(0, free - self._spare):
            self.refused["machine"] += 1
            return OutOfMemory(
                f"'{param}' takes {mib(size)} of memory, and the machine has {mib(free)} left, of which {mib(self._spare)} stay "
                "free: try again shortly, send fewer or shorter media, or unload a model (`edgewise stop NAME`).",
                param=param,
                retry_after_s=_RETRY_AFTER_S,
            )
        return None


class Hold:
    """A request's part of `HeldBytes`; given back by `close`, which may come twice, or at the end of a `with`."""

    def __init__(self, held: HeldBytes) -> None:
        self._held = held
        self._own = 0

    def __enter__(self) -> Hold:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    @property
    def size(self) -> int:
        """Bytes that it has booked."""
        return self._own

    def add(self, size: int, param: str) -> None:
        """Book `size` bytes for the medium `param`; nothing is booked where it raises.

        Raises:
            PayloadTooLarge: (413) This request alone would pass the limit.
            OutOfMemory: (503) All requests together would, or the machine has too little left.
        """
        self._held._book(size, self._own, param)
        self._own += size

    async def decoding(self, process: MediaProcess, size: int, param: str, work: Callable[[], Result]) -> Result:
        """`work` of the process that decodes, for which `size` bytes are booked while it is its turn: who waits books nothing.

        What came of it is booked by who called, in the same turn of the event loop. Raises as `add`, and what `work` raises.
        """
        booked = 0

        def book() -> None:
            nonlocal booked
            self.add(size, param)
            booked = size

        try:
            return await process.turn(work, book)
        finally:
            self.give(booked)

    def give(self, size: int) -> None:
        """Give `size` of its bytes back."""
        size = min(size, self._own)
        self._held.used -= size
        self._own -= size

    def close(self) -> None:
        """Give all of it back."""
        self.give(self._own)
