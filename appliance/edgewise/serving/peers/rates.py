"""When fetching a page beats computing it: measured rates, and the break-even between them."""

from __future__ import annotations

from collections.abc import Callable

_SHARE = 0.3  # of a new measurement in the average
LEAST_TOKENS = 64  # computed at once, for a pace that says something
STALE_S = 60.0
"""A link that was measured as too slow is measured again after so long."""


class Average:
    """Exponentially weighted; None before the first value."""

    def __init__(self) -> None:
        self.value: float | None = None

    def add(self, value: float) -> None:
        self.value = value if self.value is None else self.value + _SHARE * (value - self.value)


class LinkRate:
    """Bits per second at which pages come from a peer, its own reading of them included."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._rate = Average()
        self._at = 0.0

    @property
    def bits_per_s(self) -> float | None:
        """None where it is not known, or so old that it may have changed."""
        return None if self._now() - self._at > STALE_S else self._rate.value

    def add(self, nbytes: int, seconds: float) -> None:
        if self.bits_per_s is None:
            self._rate = Average()
        self._rate.add(8 * nbytes / max(seconds, 1e-6))
        self._at = self._now()


def break_even(bytes_per_token: float, prefill_tokens_per_s: float) -> float:
    """Bits per second above which a token's keys and values come faster over the link than they are computed."""
    return 8 * bytes_per_token * prefill_tokens_per_s
