"""What is remembered of a sequence's guesses."""

from __future__ import annotations

from dataclasses import dataclass, field

from edgewise.engine.speculation.lookup import History

_FORGET = 0.95  # how fast older outcomes count less
_PRIOR = 2.0  # outcomes that the average of all sequences counts as


@dataclass(slots=True)
class Rate:
    """How often guesses were right, newer ones counting more."""

    right: float = 0.0
    all: float = 0.0

    def learn(self, right: int, wrong: int) -> None:
        fade = _FORGET ** (right + wrong)
        self.right = self.right * fade + right
        self.all = self.all * fade + right + wrong

    def value(self, prior: float) -> float:
        return (self.right + _PRIOR * prior) / (self.all + _PRIOR)


@dataclass(slots=True)
class Guesser:
    """What is remembered of one sequence.

    Attributes:
        rates: By the length that matched.
        matched: Of the last guess; its first token is `first`, made when the sequence had `at` tokens.
    """

    history: History = field(default_factory=History)
    rates: dict[int, Rate] = field(default_factory=dict)
    matched: int = 0
    first: int = -1
    at: int = -1
