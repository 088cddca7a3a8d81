"""Keeps decisions from flapping: a place that is in use is left for one that is clearly better, and not too often."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass

from edgewise.pipeline.plan import Place

ADVANTAGE = 0.15
"""The share by which another place must be cheaper than the one in use."""
DWELL_S = 30.0
"""Seconds after a change in which there is no other one, unless the place in use can no longer be taken."""
_MAX_LANES = 4096


@dataclass(frozen=True, slots=True)
class Stay:
    """The place in use, and since when; None for one that was never changed."""

    where: Place
    since: float | None = None


def choose(stay: Stay | None, scores: Mapping[Place, float], now: float, preferred: Place | None = None) -> Stay:
    """The place to take of those that passed every gate, which must not be none.

    A `preferred` place is taken whenever it can be: preference is a rule, while costs are measurements.
    """
    best = min(scores, key=lambda where: (scores[where], where))
    if stay is None:
        return Stay(best)
    if stay.where not in scores or (preferred in scores and stay.where != preferred):
        return Stay(best, now)
    resting = stay.since is not None and now - stay.since < DWELL_S
    if best == stay.where or resting or scores[best] > (1.0 - ADVANTAGE) * scores[stay.where]:
        return stay
    return Stay(best, now)


class Stays:
    """Where requests of each kind run; requests of one kind have the same model, label, policy and about the same size."""

    def __init__(self) -> None:
        self._stays: dict[Hashable, Stay] = {}

    def peek(self, lane: Hashable, scores: Mapping[Place, float], now: float, preferred: Place | None = None) -> Stay:
        """What `take` would answer."""
        return choose(self._stays.get(lane), scores, now, preferred)

    def take(self, lane: Hashable, scores: Mapping[Place, float], now: float, preferred: Place | None = None) -> Stay:
        stay = self.peek(lane, scores, now, preferred)
        self._stays.pop(lane, None)  # the lanes that were used last are kept
        self._stays[lane] = stay
        if len(self._stays) > _MAX_LANES:
            del self._stays[next(iter(self._stays))]
        return stay
