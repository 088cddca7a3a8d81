"""Decides in each step which sequences carry guessed tokens, and how many: as many as measurements say that it pays.

A guess costs a row of the step and saves a step if it is right. What is right is seen from the draws; while nothing is guessed,
guesses are still compared with what was drawn, which costs nothing. The rows of a step are given out one by one to the likeliest
guess; that number of rows is taken which makes most tokens per second (`step_ratio`), and none unless it makes clearly more.
No stream may become slower by it than `SLOWER` times, whoever else gains.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from collections.abc import Sequence as Seq
from typing import Protocol

from edgewise.engine.sequence import Sequence
from edgewise.engine.speculation.allotment import SLOWER, allot, within
from edgewise.engine.speculation.guesser import Guesser, Rate
from edgewise.engine.speculation.step_ratio import StepRatio

MOST_DRAFTED = 8
"""Tokens that are drafted of one sequence in one step."""
MOST = 16
"""Guessed tokens of one sequence in one step."""
_DRAFTED = 0  # stands for the length of a match
_ALWAYS_DRAFTED = 4
_TRY_AGAIN = 256  # steps after which the draft model is tried again
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


class Drafts(Protocol):
    """What `engine.speculation.draft.DraftModel` does."""

    def guess(self, sequences: Seq[Sequence], counts: Seq[int], spare_s: float = math.inf) -> list[tuple[int, ...]]: ...

    def forget(self, request_id: str) -> None: ...


class Speculator:
    """Prompt lookup where it pays, and a draft model's guesses where lookup has none that do.

    Args:
        draft: The draft model, if there is one.
        always: Take every guess, whatever it costs; for comparisons.
        now: Seconds.
    """

    def __init__(
        self,
        *,
        draft: Drafts | None = None,
        always: bool = False,
        now: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.ratios = StepRatio()
        self._draft = draft
        self._draft_ratios = StepRatio()
        self._drafted_s: float | None = None  # of the step under way, if the draft model wrote for it
        self._declined = 0
        self._always = always
        self._now = now
        self._overall: dict[int, Rate] = {}
        self._rest = 0

    def __repr__(self) -> str:
        return f"Speculator(always={self._always}, resting={self._rest}, draft={self._draft})"

    @property
    def resting(self) -> bool:
        """See `Speculates`."""
        return self._rest > 0

    def passed(self) -> None:
        """See `Speculates`."""
        self._rest = max(0, self._rest - 1)

    def propose(self, sequences: Seq[Sequence], rooms: Seq[int], most: int) -> list[tuple[int, ...]]:
        """See `Speculates`."""
        self._drafted_s = None
        if self.resting or not sequences:
            self.passed()
            return [()] * len(sequences)
        began = self._now()
        guesses = [self._guess(one, min(room, most, MOST)) for one, room in zip(sequences, rooms, strict=True)]
        lengths = [len(guess) for guess in guesses]
        counts = lengths if self._always else allot(self._chances(sequences, lengths), lengths, most, self.ratios)
        chosen = [guess[:count] for guess, count in zip(guesses, within(counts, most), strict=True)]
        if not any(chosen) and self._draft is not None:
            return self._drafted(self._draft, sequences, rooms, most)
        if not any(chosen) and not self._always:
            self._rest = self._steps_of_rest(len(sequences), self._now() - began)
        return chosen

    def observe(self, decoding: int, rows: int, seconds: float) -> None:
        """A step of `decoding` sequences and no prompts took so long; `rows` of its tokens were guessed."""
        if rows == 0:
            self.ratios.observe(decoding, 0, seconds)
            self._draft_ratios.observe(decoding, 0, seconds)
        elif self._drafted_s is None:
            self.ratios.observe(decoding, rows, seconds)
        else:
            self._draft_ratios.observe(decoding, rows, seconds + self._drafted_s)

    def ended(self, sequence: Sequence) -> None:
        """An answer is complete or given up."""
        if self._draft is not None:
            self._draft.forget(sequence.id)

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

    def _drafted(self, draft: Drafts, sequences: Seq[Sequence], rooms: Seq[int], most: int) -> list[tuple[int, ...]]:
        """Guesses of the draft model, as many as pay. Where none do, a few are made now and then to see whether that holds."""
        lengths = [max(0, min(room, MOST_DRAFTED)) for room in rooms]
        counts = [min(length, _ALWAYS_DRAFTED) for length in lengths]
        spare_s = math.inf
        if not self._always:
            # Guesses pay in the step that they are made for, or are not made; what is read for later ones must not be felt.
            spare_s = (SLOWER - 1.0) * self._draft_ratios.plain_s.get(len(sequences), 0.0)
            chances = [self._chance(one, _DRAFTED) for one in sequences]
            counts = allot(chances, lengths, most, self._draft_ratios)
            self._declined = 0 if any(counts) else self._declined + 1
            if self._declined > _TRY_AGAIN and not self._draft_ratios.needs_plain(len(sequences)):
                counts = [min(length, 2) for length in lengths]
                spare_s *= self._declined  # nothing was read meanwhile
                self._declined = 0
        counts = within(counts, most)
        if not any(counts):
            return [()] * len(sequences)
        began = self._now()
        guesses = draft.guess(sequences, counts, spare_s)
        self._drafted_s = self._now() - began
        for sequence, guess in zip(sequences, guesses, strict=True):
            if guess:
                guesser = _guesser(sequence)
                guesser.matched, guesser.at = _DRAFTED, -1
        return guesses

    def _chances(self, sequences: Seq[Sequence], lengths: Seq[int]) -> list[float]:
        matched = [_guesser(one).matched for one in sequences]
        pairs = zip(sequences, matched, lengths, strict=True)
        return [self._chance(one, match) if length else 0.0 for one, match, length in pairs]

    def _chance(self, sequence: Sequence, matched: int) -> float:
        """That a guess of the sequence is right, from what it saw and, as long as that is little, from what all saw."""
        prior = self._overall.get(matched, Rate()).value(0.5)
        return _guesser(sequence).rates.get(matched, Rate()).value(prior)

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
