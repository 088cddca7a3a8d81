"""How many tokens of prompts a draft model may read in a step, so that those who wait for the step hardly notice.

Reading comes before the first guess, and whether guesses will pay is not known then. So it takes a share of the steps' time; what
a token takes is learned from what has been read. A share that is too small to read anything is saved for the next steps.
"""

from __future__ import annotations

import math

_SMOOTHING = 0.2
_OUTLIER = 2.0  # a token that took longer than this many times what was expected counts as this

LEAST = 16
"""Tokens that are read at once at least: fewer take hardly less time."""


class Reading:
    """The time that reading may take, and what it takes.

    Args:
        chunk: Tokens that are read in one step at most.
    """

    def __init__(self, chunk: int) -> None:
        self._chunk = chunk
        self._saved_s = 0.0
        self._token_s: float | None = None

    def __repr__(self) -> str:
        return f"Reading({self._token_s} s a token, {self._saved_s} s saved)"

    def tokens(self, spare_s: float) -> int:
        """How many may be read in a step that may become longer by `spare_s`; 0, or at least `LEAST`."""
        if math.isinf(spare_s):
            return self._chunk
        if self._token_s is None:
            return LEAST  # to learn from
        least_s = LEAST * self._token_s
        self._saved_s = min(self._saved_s + spare_s, max(spare_s, least_s))
        if self._saved_s < least_s:
            return 0
        return min(self._chunk, max(LEAST, int(self._saved_s / self._token_s)))

    def done(self, tokens: int, seconds: float) -> None:
        """So many were read. Other programs make it look longer, nothing makes it look shorter."""
        found, known = seconds / tokens, self._token_s
        if known is None or found < known:
            self._token_s = found
        else:
            self._token_s = known + _SMOOTHING * (min(found, _OUTLIER * known) - known)
        self._saved_s -= tokens * self._token_s
