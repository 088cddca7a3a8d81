"""How the rows of a step are given to guesses: to the likeliest first, and as many as make most tokens per second."""

from __future__ import annotations

import heapq
from collections.abc import Sequence as Seq

from edgewise.engine.speculation.step_ratio import ROWS, StepRatio

_WORTH = 1.05  # tokens per second with guesses over those without, from which on they pay
SLOWER = 1.1  # how much slower than without guesses the least gaining stream may become


def allot(chances: Seq[float], lengths: Seq[int], most: int, ratios: StepRatio) -> list[int]:
    """How many of each sequence's guesses are worth their rows; zeros where none are, or a step without guesses is due.

    Args:
        chances: That a guess of each sequence is right.
        lengths: How many guesses each has.
        most: Rows that all together may have.
        ratios: What steps of as many sequences cost.
    """
    decoding = len(chances)
    none = [0] * decoding
    if not any(lengths) or ratios.needs_plain(decoding):
        return none
    best, best_rate, counts, gains = none, _WORTH, list(none), [0.0] * decoding
    # The next guess of each sequence, the likeliest first; it is only right if those before it are.
    waiting = [(-chance, place) for place, chance in enumerate(chances) if lengths[place]]
    heapq.heapify(waiting)
    while waiting and sum(counts) < most:
        likely, place = heapq.heappop(waiting)
        counts[place] += 1
        gains[place] -= likely
        if counts[place] < lengths[place]:
            heapq.heappush(waiting, (likely * chances[place], place))
        rows = sum(counts)
        if rows not in ROWS and rows < most and waiting:
            continue
        ratio = ratios.ratio(decoding, rows)
        rate = (1.0 + sum(gains) / decoding) / ratio
        if rate > best_rate and (1.0 + min(gains)) * SLOWER >= ratio:
            best, best_rate = list(counts), rate
    return best


def within(counts: Seq[int], most: int) -> list[int]:
    """The first ones get theirs, as far as `most` goes."""
    given = []
    for count in counts:
        given.append(min(count, most))
        most -= given[-1]
    return given
