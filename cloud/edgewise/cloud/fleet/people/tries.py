"""How often something secret may be guessed: by name and by address, within a window of time."""

from __future__ import annotations

import ipaddress
from collections import OrderedDict, deque

from edgewise.core.clock import Clock
from edgewise.core.errors import RateLimited

WINDOW_S = 15 * 60.0
_MOST_KEYS = 20_000


class Tries:
    """Counts tries, in this process only; one that proves right is taken back. Use from the event loop.

    A try is counted before it is checked: many at once get no more than one after the other.

    Args:
        limit: Tries of one key within `WINDOW_S`.
    """

    def __init__(self, limit: int, clock: Clock) -> None:
        self._limit = limit
        self._clock = clock
        self._tries: OrderedDict[str, deque[float]] = OrderedDict()

    def take(self, *keys: str) -> None:
        """Count a try of each key.

        Raises:
            RateLimited: One of them has had its tries; none is counted.
        """
        now = self._clock.monotonic()
        for key in keys:
            tries = self._recent(key, now)
            if len(tries) >= self._limit:
                raise too_many(self._limit, tries[0] + WINDOW_S - now)
        for key in keys:
            self._recent(key, now).append(now)

    def give_back(self, key: str) -> None:
        """The last try of this key was right."""
        tries = self._tries.get(key)
        if tries:
            tries.pop()

    def _recent(self, key: str, now: float) -> deque[float]:
        tries = self._tries.setdefault(key, deque())
        self._tries.move_to_end(key)
        while tries and tries[0] <= now - WINDOW_S:
            tries.popleft()
        if len(self._tries) > _MOST_KEYS:
            self._tries.popitem(last=False)
        return tries


def too_many(limit: int, wait_s: float) -> RateLimited:
    """Until so many seconds have passed."""
    return RateLimited(
        f"Too many tries: {limit} in {WINDOW_S / 60:.0f} minutes. Wait a while.", retry_after_s=max(1.0, wait_s)
    )


def network_of(address: str) -> str:
    """What counts as one place: an IPv4 address, or the /64 network of an IPv6 one, of which one machine has all."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    parsed = getattr(parsed, "ipv4_mapped", None) or parsed
    return str(parsed) if parsed.version == 4 else str(ipaddress.ip_network(f"{parsed}/64", strict=False))
