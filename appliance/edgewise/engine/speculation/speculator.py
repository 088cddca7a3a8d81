"""Decides in each step which sequences carry guessed tokens, and how many: as many as measurements say that it pays.

A guess costs a row of the step and saves a step if it is right. What is right is seen from the draws; while nothing is guessed,
guesses are still compared with what was drawn, which costs nothing. The rows of a step are given out one by one to the likeliest
guess; that number of rows is taken which makes most tokens per second (`step_ratio`), and none unless it makes clearly more.
No stream may become slower by it than `_SLOWER` times, whoever else gains.
"""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Callable
from collections.abc import Sequence as Seq
from typing import Protocol

from edgewise.engine.sequence import Sequence
from edgewise.engine.speculation.guesser import Guesser, Rate
from edgewise.engine.speculation.step_ratio import ROWS, StepRatio

MOST = 16
"""Guessed tokens of one sequence in one step."""
_WORTH = 1.05  # tokens per second with guesses over those without, from which on they pay
_SLOWER = 1.1
_LOOKING_SHARE = 0.01  # of a step's time that looking may take where nothing is guessed
_MOST_REST = 16  # steps


class Speculates(Protocol):
    """What the scheduler asks for guesses."""

    @property
    def resting(self) -> bool:
        """Whether the next step gets no guesses."""

    def propose(self, sequences: Seq[Sequence], rooms: Seq[int], most: int) -> list[tuple[int, ...]]:
        """Guessed tokens for each of the sequences that get their next token.

        Args:
            rooms: How many each may have.
            most: How many all together may have.
        """

    def passed(self) -> None:
        """A step was made of which it was not asked."""


class Speculator:
    """Prompt lookup where it pays.

    Args:
        always: Take every guess, whatever it costs; for comparisons.
        now: Seconds.
    """

    def __init__(self, *, always: bool = False, now: Callable[[], float] = time.perf_counter) -> None:
        self.ratios = StepRatio()
        self._always = always
        self._now = now
        self._overall: dict[int, Rate] = {}
        self._rest = 0

    def __repr__(self) -> str:
        return f"Speculator(always={self._always}, resting={self._rest})"

    @property
    def resting(self) -> bool:
        """See `Speculates`."""
        return self._rest > 0

    def passed(self) -> None:
        """See `Speculates`."""
        self._rest = max(0, self._rest - 1)

    def propose(self, sequences: Seq[Sequence], rooms: Seq[int], most: int) -> list[tuple[int, ...]]:
        """See `Speculates`."""
        if self.resting or not sequences:
            self.passed()
            return [()] * len(sequences)
        began = self._now()
        guesses = [self._guess(one, min(room, most, MOST)) for one, room in zip(sequences, rooms, strict=True)]
        counts = [len(guess) for guess in guesses] if self._always else self._counts(sequences, guesses, most)
        chosen = [guess[:count] for guess, count in zip(guesses, _within(counts, most), strict=True)]
        if not any(chosen) and not self._always:
            self._rest = self._steps_of_rest(len(sequences), self._now() - began)
        return chosen

    def observe(self, decoding: int, rows: int, seconds: float) -> None:
        """A step of `decoding` sequences and no prompts took so long; `rows` of its tokens were guessed."""
        self.ratios.observe(decoding, rows, seconds)

    def learn(self, sequence: Sequence, proposed: int, accepted: int) -> None:
        """Of the guesses in a step, so many were right; called before anything is asked about the sequence's new tokens."""
        self._learn(_guesser(sequence), accepted, int(accepted < proposed))

    # --- parts -----------------------------------------------------------------------------------------------------------

    def _guess(self, sequence: Sequence, room: int) -> tuple[int, ...]:
        guesser = _guesser(sequence)
        if guesser.at == len(sequence.tokens) - 1:  # made for the step before, and not computed then
            right = sequence.tokens[-1] == guesser.first
            self._learn(guesser, int(right), int(not right))
        guesser.at = -1
        guess = guesser.history.guess(sequence.tokens, room) if room > 0 else None
        if guess is None:
            return ()
        guesser.matched, guesser.first, guesser.at = guess.matched, guess.tokens[0], len(sequence.tokens)
        return guess.tokens

    def _learn(self, guesser: Guesser, right: int, wrong: int) -> None:
        guesser.at = -1
        for rates in (guesser.rates, self._overall):
            rates.setdefault(guesser.matched, Rate()).learn(right, wrong)

    def _counts(self, sequences: Seq[Sequence], guesses: Seq[tuple[int, ...]], most: int) -> list[int]:
        """How many of each sequence's guesses are worth their rows."""
        none = [0] * len(guesses)
        decoding = len(sequences)
        if not any(guesses) or self.ratios.needs_plain(decoding):
            return none
        chances = [self._chance(one) if guess else 0.0 for one, guess in zip(sequences, guesses, strict=True)]
        best, best_rate, counts, gains = none, _WORTH, list(none), [0.0] * decoding
        # The next guess of each sequence, the likeliest first; it is only right if those before it are.
        waiting = [(-chance, place) for place, chance in enumerate(chances) if guesses[place]]
        heapq.heapify(waiting)
        while waiting and sum(counts) < most:
            likely, place = heapq.heappop(waiting)
            counts[place] += 1
            gains[place] -= likely
            if counts[place] < len(guesses[place]):
                heapq.heappush(waiting, (likely * chances[place], place))
            rows = sum(counts)
            if rows not in ROWS and rows < most and waiting:
                continue
            ratio = self.ratios.ratio(decoding, rows)
            rate = (1.0 + sum(gains) / decoding) / ratio
            if rate > best_rate and (1.0 + min(gains)) * _SLOWER >= ratio:
                best, best_rate = list(counts), rate
        return best

    def _chance(self, sequence: Sequence) -> float:
        """That a guess of the sequence is right, from what it saw and, as long as that is little, from what all saw."""
        guesser = _guesser(sequence)
        prior = self._overall.get(guesser.matched, Rate()).value(0.5)
        return guesser.rates.get(guesser.matched, Rate()).value(prior)

    def _steps_of_rest(self, decoding: int, looked_s: float) -> int:
        """Steps without looking, so that it takes no more than its share of the time."""
        plain = self.ratios.plain_s.get(decoding)
        if plain is None:
            return 0
        return min(_MOST_REST, math.ceil(looked_s / (_LOOKING_SHARE * plain)) - 1)


def _guesser(sequence: Sequence) -> Guesser:
    if sequence.guesser is None:
        sequence.guesser = Guesser()
    return sequence.guesser


def _within(counts: Seq[int], most: int) -> list[int]:
    """The first ones get theirs, as far as `most` goes."""
    given = []
    for count in counts:
        given.append(min(count, most))
        most -= given[-1]
    return given
