"""How long a batch waits for company: callers who were just answered may be back at once, and half a batch costs nearly as much.

A batch that is being computed collects the next by itself, so with callers who do not wait for answers there is nothing to gain.
But callers who ask again as soon as they are answered fall into two halves that wait for each other. So after a batch the next
waits for the callers of the last: if batches have a fixed cost, for a share of it at most, and as long as that has paid.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_SHARE: Final = 0.5
"""Of a batch's fixed cost, that is waited at most."""
_DECAY: Final = 0.98
"""Of old batches' weight in the estimate of the costs."""
_LEARN: Final = 0.2
_PAYS: Final = 0.5
"""Share of waits that must have paid; else few are made to try."""
_SELDOM, _HARDLY = 16, 1024
"""Batches between two tries at first, and at most: each that has not paid doubles them."""
_GUESS: Final = 0.5
"""Share of the time that counts as fixed while all batches had one size."""


@dataclass(slots=True)
class Costs:
    """Of a batch of n: fixed + n * each seconds, by least squares that forget."""

    weight: float = 0.0
    n: float = 0.0
    s: float = 0.0
    nn: float = 0.0
    ns: float = 0.0

    def add(self, count: int, seconds: float) -> None:
        self.weight = self.weight * _DECAY + 1
        self.n = self.n * _DECAY + count
        self.s = self.s * _DECAY + seconds
        self.nn = self.nn * _DECAY + count * count
        self.ns = self.ns * _DECAY + count * seconds

    def fit(self) -> tuple[float, float]:
        """Fixed seconds, and those of each; neither is negative."""
        if not self.weight:
            return 0.0, 0.0
        spread = self.weight * self.nn - self.n * self.n
        if spread < 1e-6 * self.weight * self.nn:
            mean = self.s / self.weight
            return _GUESS * mean, (1 - _GUESS) * self.s / self.n
        each = min(max((self.weight * self.ns - self.n * self.s) / spread, 0.0), self.s / self.n)
        return max((self.s - each * self.n) / self.weight, 0.0), each


class Window:
    """Of one encoder; times are of any one clock, in seconds."""

    def __init__(self) -> None:
        self._costs = Costs()
        self._last = 0
        self._ended = float("-inf")
        self._paid = 1.0
        self._passed = 0
        self._between = _SELDOM
        self._held: tuple[float, int, int] | None = None

    @property
    def each_s(self) -> float:
        """Seconds that one more input costs a batch, as learned; 0 before the first."""
        return self._costs.fit()[1]

    def hold(self, waiting: int, most: int, now: float) -> float:
        """Seconds that the next batch is to wait yet; 0 says compute.

        Args:
            waiting: Requests that it would have.
            most: That it can have.
        """
        fixed, _ = self._costs.fit()
        if self._held is None:
            wanted = min(waiting + self._last, most) if now - self._ended < _SHARE * fixed else waiting
            if wanted <= waiting or not self._worth():
                return 0.0
            self._held = (now, waiting, wanted)
        began, _, wanted = self._held
        return 0.0 if waiting >= wanted else max(0.0, began + _SHARE * fixed - now)

    def computed(self, count: int, began: float, ended: float) -> None:
        """A batch of so many was computed."""
        if self._held is not None:
            held, before, _ = self._held
            self._held = None
            fixed, each = self._costs.fit()
            came = count - before
            pays = came * (fixed + before * each) > count * (began - held)
            self._paid += _LEARN * (float(pays) - self._paid)
            self._between = _SELDOM if pays else min(2 * self._between, _HARDLY)
        self._costs.add(count, ended - began)
        self._last, self._ended = count, ended

    def _worth(self) -> bool:
        if self._paid >= _PAYS:
            return True
        self._passed += 1
        if self._passed < self._between:
            return False
        self._passed = 0
        return True
