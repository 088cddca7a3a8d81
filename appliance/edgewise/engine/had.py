"""What callers have had of something that they share: a virtual counter for each key (Sheng et al., "Fairness in Serving Large
Language Models", OSDI 2024).

A key that comes back after a pause is lifted to the least counter among those at work, so that a pause saves up nothing.
"""

from __future__ import annotations

from collections import Counter

_KEPT = 1024  # counters above which those that a lift would replace anyway are forgotten


class Had:
    """Of the keys of one deadline class, in one unit: weighted tokens, or seconds.

    A key is at work from its first `enter` to the `leave` that answers it. `left` is the counter of the key that was the last
    to leave: the level when nobody is at work.
    """

    def __init__(self) -> None:
        self.left = 0.0
        self._at_work: Counter[str] = Counter()
        self._counters: dict[str, float] = {}

    def __len__(self) -> int:
        """Keys that are remembered."""
        return len(self._counters)

    def __contains__(self, key: str) -> bool:
        """Whether a key is at work."""
        return key in self._at_work

    def level(self) -> float:
        """The least that a key at work has had."""
        return min((self._counters[key] for key in self._at_work), default=self.left)

    def of(self, key: str) -> float:
        """What a key has had; the level for one that is not known."""
        had = self._counters.get(key)
        return self.level() if had is None else had

    def enter(self, key: str) -> None:
        """A key has one request more at work; `leave` comes as often."""
        if key not in self._at_work:
            self._counters[key] = max(self._counters.get(key, 0.0), self.level())
        self._at_work[key] += 1

    def leave(self, key: str) -> None:
        self._at_work[key] -= 1
        if self._at_work[key]:
            return
        del self._at_work[key]
        self.left = max(self.left, self._counters[key])
        if len(self._counters) > _KEPT:
            level = self.level()
            self._counters = {k: had for k, had in self._counters.items() if k in self._at_work or had > level}

    def charge(self, key: str, amount: float) -> None:
        """A key has had so much more, at work or not."""
        self._counters[key] = self.of(key) + amount
