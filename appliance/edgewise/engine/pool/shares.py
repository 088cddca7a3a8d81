"""What each caller has had of the device, over all its engines: seconds, by deadline class and key.

Every engine is fair to its own callers (`engine.fairness`) and knows nothing of the others. So a request is told with what its
key has had beyond the key at work that has had least: who floods one engine does not come first in another.
"""

from __future__ import annotations

from edgewise.core.priority import Priority
from edgewise.engine.encoders.request import EncodeStats
from edgewise.engine.had import Had
from edgewise.engine.request import RequestStats


class DeviceShares:
    """Used from one event loop."""

    def __init__(self) -> None:
        self._classes = {priority: Had() for priority in Priority}

    def begin(self, priority: Priority, key: str) -> Share:
        """A request begins."""
        return Share(self._classes[priority], key)


class Share:
    """One request's part; `close` ends it, and may come twice.

    Attributes:
        lead_s: What its key had at the beginning beyond the key at work that had least.
    """

    def __init__(self, had: Had, key: str) -> None:
        self._had = had
        self._key = key
        self._counted = 0.0
        self._open = True
        had.enter(key)
        self.lead_s = had.of(key) - had.level()

    def told(self, stats: object) -> None:
        """An engine's account of it so far; other objects, and None, say nothing.

        That of an encoder is of one part, that of a language model of all that came before.
        """
        if isinstance(stats, EncodeStats):
            self._had.charge(self._key, stats.device_s)
        elif isinstance(stats, RequestStats):
            self._had.charge(self._key, max(0.0, stats.device_s - self._counted))
            self._counted = max(self._counted, stats.device_s)

    def close(self) -> None:
        if self._open:
            self._open = False
            self._had.leave(self._key)
