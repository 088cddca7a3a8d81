"""How much longer a step takes that checks guesses, learned from the steps themselves.

Learned is the ratio to a step of the same sequences without guesses, so that growing contexts do not blur it: per number of
decoding sequences and per number of guessed tokens, the latter in classes. What was not measured yet is thought to cost no more
than fewer guesses do, so that it is tried once; what was measured long ago is tried again.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

_SMOOTHING = 0.2
_OUTLIER = 2.0  # a step that took longer than this many times what was expected counts as this
_REFRESH_STEPS = 32  # steps with guesses after which one without is needed: the measure of all others
_FORGET_STEPS = 500  # steps after which a ratio is tried again

ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
"""Classes of numbers of guessed tokens; a number counts as the next class."""


@dataclass(slots=True)
class _Known:
    ratio: float
    step: int


@dataclass(slots=True)
class StepRatio:
    """What was learned of steps.

    Attributes:
        plain_s: Seconds of a step without guesses, by decoding sequences.
        steps: Steps observed.
    """

    plain_s: dict[int, float] = field(default_factory=dict)
    steps: int = 0
    _since_plain: dict[int, int] = field(default_factory=dict)
    _known: dict[tuple[int, int], _Known] = field(default_factory=dict)

    def needs_plain(self, decoding: int) -> bool:
        """Whether a step without guesses is due."""
        return decoding not in self.plain_s or self._since_plain.get(decoding, 0) >= _REFRESH_STEPS

    def ratio(self, decoding: int, rows: int) -> float:
        """Expected time of a step with `rows` guessed tokens over one without, at least 1."""
        known = (self._known.get((decoding, size)) for size in reversed(ROWS[: _class_of(rows) + 1]))
        return next((one.ratio for one in known if one is not None and not self._old(one)), 1.0)

    def observe(self, decoding: int, rows: int, seconds: float) -> None:
        """Learn from a step of `decoding` sequences and nothing else, `rows` of whose tokens were guessed."""
        self.steps += 1
        plain = self.plain_s.get(decoding)
        if rows == 0:
            self.plain_s[decoding] = _blend(plain, seconds)
            self._since_plain[decoding] = 0
            return
        self._since_plain[decoding] = self._since_plain.get(decoding, 0) + 1
        if plain is None:
            return
        key = (decoding, ROWS[_class_of(rows)])
        known = self._known.get(key)
        # No more than what each guess would take as a sequence of its own: the rest is another program's.
        ratio = min(max(1.0, seconds / plain), 1.0 + rows / decoding)
        before = None if known is None or self._old(known) else known.ratio
        self._known[key] = _Known(_blend(before, ratio), self.steps)

    def _old(self, known: _Known) -> bool:
        return self.steps - known.step > _FORGET_STEPS


def _class_of(rows: int) -> int:
    """Place in `ROWS`."""
    return min(bisect_left(ROWS, rows), len(ROWS) - 1)


def _blend(old: float | None, new: float) -> float:
    return new if old is None else old + _SMOOTHING * (min(new, _OUTLIER * old) - old)
