"""How much of media all requests together may hold in memory before an engine has them: a small file may be hours of sound."""

from __future__ import annotations

from types import TracebackType
from typing import Final

from edgewise.core.errors import InvalidRequest, QueueFull
from edgewise.core.sizes import mib

HELD_BYTES: Final = 512 << 20
"""Two hours of sound, or 170 million pixels."""
_RETRY_AFTER_S: Final = 2.0


class HeldBytes:
    """A counter for the service. All methods run in the event loop.

    Args:
        limit: Of all requests together, and so of each.
    """

    def __init__(self, limit: int = HELD_BYTES) -> None:
        self.limit = limit
        self.used = 0

    def hold(self) -> Hold:
        """What one request holds: nothing yet."""
        return Hold(self)


class Hold:
    """A request's part of `HeldBytes`; given back by `close`, which may come twice, or at the end of a `with`."""

    def __init__(self, held: HeldBytes) -> None:
        self._held = held
        self._own = 0

    def __enter__(self) -> Hold:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def add(self, size: int, param: str) -> None:
        """Count `size` bytes of the medium `param`.

        Raises:
            InvalidRequest: This request alone would pass the limit.
            QueueFull: (429) All requests together would.
        """
        held = self._held
        if self._own + size > held.limit:
            raise InvalidRequest(
                f"With '{param}' the media of this request take {mib(self._own + size)} of memory, and at most "
                f"{mib(held.limit)} are given: send fewer or shorter ones.",
                param=param,
            )
        if held.used + size > held.limit:
            raise QueueFull(
                f"'{param}' takes {mib(size)} of memory; media of requests in work hold {mib(held.used)}, and the limit of "
                f"this service is {mib(held.limit)}: try again shortly, or send fewer or shorter media.",
                retry_after_s=_RETRY_AFTER_S,
            )
        self._own += size
        held.used += size

    def close(self) -> None:
        """Give all of it back."""
        self._held.used -= self._own
        self._own = 0
