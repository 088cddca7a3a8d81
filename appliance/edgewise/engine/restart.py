"""When to start the engine again. Pure."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartRules:
    """Pauses in seconds.

    Attributes:
        first_s, factor, longest_s: The pause grows from `first_s` by `factor` up to `longest_s`, with each life in a row that
            achieved nothing; each is multiplied with a random number between 1/2 and 1.
        healthy_s: A life that was ready for so long, or that delivered a token, has achieved something.
        give_up_after: So many lives in a row that achieved nothing, and the engine counts as failed.
        window_s, most_in_window: More than so many crashes in so many seconds, and it counts as failed too.
        slow_s: Pause between the tries of a failed engine, times a random number between 3/4 and 5/4.
    """

    first_s: float = 0.1
    factor: float = 2.0
    longest_s: float = 10.0
    healthy_s: float = 10.0
    give_up_after: int = 6
    window_s: float = 120.0
    most_in_window: int = 20
    slow_s: float = 60.0


@dataclass(frozen=True, slots=True)
class Decision:
    """Start again after `pause_s`; `failed` tells callers not to wait for it."""

    pause_s: float
    failed: bool


@dataclass(slots=True)
class RestartPolicy:
    """Counts crashes; `random` returns a number in [0, 1)."""

    rules: RestartRules
    random: Callable[[], float] = field(default_factory=lambda: random.Random().random)  # noqa: S311 - jitter, no secret
    _barren: int = 0
    _crashes: deque[float] = field(default_factory=deque)

    def crashed(self, now: float, *, achieved: bool, hopeless: bool = False) -> Decision:
        """A life has ended at `now`. `hopeless`: it could not even start, for a reason that time does not mend."""
        rules = self.rules
        self._barren = 1 if achieved else self._barren + 1
        self._crashes.append(now)
        while self._crashes[0] < now - rules.window_s:
            self._crashes.popleft()
        if hopeless or self._barren >= rules.give_up_after or len(self._crashes) > rules.most_in_window:
            return Decision(rules.slow_s * (0.75 + 0.5 * self.random()), failed=True)
        pause = min(rules.longest_s, rules.first_s * rules.factor ** (self._barren - 1))
        return Decision(pause * (0.5 + 0.5 * self.random()), failed=False)
