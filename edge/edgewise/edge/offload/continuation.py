"""Which side an answer is made on, decided from what happened so far. Pure: no time, no link, no engine.

An answer has a side that begins it and may have another one. The other side is begun when the first is lost for good, and then
goes on after what was delivered; or, hedging, while nothing was delivered yet: then whichever gives the first token makes the
answer, and the other one is cancelled. Each side is begun once at most.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from edgewise.core.errors import (
    Cancelled,
    ConstraintFailed,
    ContentRefused,
    DeadlineExceeded,
    InvalidRequest,
    RangeNotThere,
    error_class,
)
from edgewise.pipeline.plan import Place

Side = Place
_THE_REQUEST_ITSELF = (Cancelled, DeadlineExceeded, ConstraintFailed, ContentRefused)


@dataclass(frozen=True, slots=True)
class Begin:
    """Begin on `side` after what was delivered; `why` goes into the receipt."""

    side: Side
    why: str


@dataclass(frozen=True, slots=True)
class Fail:
    """The answer ends with this error."""

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Complete:
    """Everything that was asked for has been delivered: only the last word was lost."""


Move = Begin | Fail | Complete


class Course:
    """The state of one answer.

    Args:
        first: Where it begins.
        other: The other side; None where there is none.
        go_on: Whether a lost side is replaced by the other one.
        max_tokens: Of the answer.
        output: Tokens that the caller had before.

    Attributes:
        output: Everything that was delivered.
        winner: The side that makes the answer; None before the first token.
        running: Sides that work on it.
    """

    def __init__(
        self, first: Side, other: Side | None, *, max_tokens: int, output: Iterable[int] = (), go_on: bool = True
    ) -> None:
        self.output = list(output)
        self.winner: Side | None = None
        self.running: set[Side] = {first}
        self._begun: set[Side] = {first}
        self._other = other
        self._go_on = go_on
        self._max_tokens = max_tokens

    @property
    def can_hedge(self) -> bool:
        return self.winner is None and self._other is not None and self._other not in self._begun

    def hedge(self, seconds: float) -> Begin:
        """No token came for so long; call it while `can_hedge`."""
        assert self._other is not None
        assert self.can_hedge
        return self._begin(
            self._other, f"No token came within {seconds:g} s: both sides were asked, the first one won."
        )

    def tokens(self, side: Side, tokens: Iterable[int]) -> frozenset[Side]:
        """Take what a side gives; the sides that are to be cancelled because this one was first.

        Call it for running sides only: what a cancelled one still gives is dropped.
        """
        assert side in self.running
        self.output += tokens
        self.winner = side
        losers = frozenset(self.running - {side})
        self.running = {side}
        return losers

    def broke(self, side: Side, code: str, message: str) -> Move | None:
        """A running side ended with an error. None: the other one is still at work."""
        assert side in self.running
        self.running.discard(side)
        if self.running:
            return None
        if len(self.output) >= self._max_tokens:
            return Complete()
        if not self._go_on or self._other is None or self._other in self._begun or not may_continue(side, code):
            return Fail(code, message)
        return self._begin(self._other, f"The {side} engine was lost ({code}): {message}")

    def _begin(self, side: Side, why: str) -> Begin:
        self.running.add(side)
        self._begun.add(side)
        return Begin(side, why)


def may_continue(side: Side, code: str) -> bool:
    """Whether the other side may succeed where this one failed.

    What the request itself does not allow fails everywhere. What a cloud refuses (a key, a quota, a model that it no longer
    has, a stream that it no longer keeps) is no fault of the request.
    """
    kind = error_class(code)
    if kind is None or issubclass(kind, RangeNotThere):
        return True
    if issubclass(kind, _THE_REQUEST_ITSELF):
        return False
    return side != "local" or not issubclass(kind, InvalidRequest)
