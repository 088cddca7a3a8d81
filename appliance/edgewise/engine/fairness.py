"""The queue, and whose turn it is in it: the most urgent class first, in a class the caller who has had least, then first come.

What a caller has had is a virtual token counter for each class and key (Sheng et al., "Fairness in Serving Large Language
Models", OSDI 2024): prompt tokens count once when they are admitted, generated tokens twice when they are drawn, as they do
there. A key that comes back after a pause is lifted to the least counter among those waiting, so that a pause saves up nothing.
Between two keys of a class that both have requests waiting all the time, the counters never differ by more than twice the larger
of the largest prompt and twice the tokens that one batch can generate for requests admitted at a difference of nothing: a bound
that does not grow with time. A hundred requests of one key delay another key's single one by one turn, not by a hundred.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Container, Iterator
from dataclasses import dataclass, field

from edgewise.core.priority import Priority
from edgewise.engine.sequence import Sequence

PROMPT_WEIGHT = 1.0
OUTPUT_WEIGHT = 2.0
_KEPT_COUNTERS = 1024  # above it, counters that a lift would replace anyway are forgotten


@dataclass(slots=True)
class _Class:
    """The waiting sequences of one deadline class by key, in order of arrival, and what each key has had.

    `left` is the counter of the key that was the last to leave the queue: the level when nobody waits.
    """

    queues: dict[str, list[Sequence]] = field(default_factory=dict)
    counters: dict[str, float] = field(default_factory=dict)
    left: float = 0.0

    def level(self) -> float:
        return min((self.counters[key] for key in self.queues), default=self.left)

    def prune(self) -> None:
        level = self.level()
        self.counters = {k: had for k, had in self.counters.items() if k in self.queues or had > level}


class WaitingQueue:
    """Sequences that wait for a place in the batch. Iterates in no particular order."""

    def __init__(self) -> None:
        self._classes = [_Class() for _ in Priority]
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Sequence]:
        return (s for one in self._classes for queue in one.queues.values() for s in queue)

    def __contains__(self, sequence: object) -> bool:
        return any(sequence is waiting for waiting in self)

    def push(self, sequence: Sequence) -> None:
        """Queue a sequence under its class and key, at its place by arrival."""
        one, key = self._classes[sequence.rank], sequence.request.key
        if key not in one.queues:
            one.counters[key] = max(one.counters.get(key, 0.0), one.level())
            one.queues[key] = []
        insort(one.queues[key], sequence, key=lambda waiting: waiting.arrival)
        self._size += 1

    def remove(self, sequence: Sequence) -> None:
        """Raises ValueError if it does not wait."""
        one, key = self._classes[sequence.rank], sequence.request.key
        queue = one.queues.get(key, [])
        queue.remove(sequence)
        self._size -= 1
        if not queue:
            del one.queues[key]
            one.left = max(one.left, one.counters[key])
            if len(one.counters) > _KEPT_COUNTERS:
                one.prune()

    def first(self, skip: Container[Sequence] = ()) -> Sequence | None:
        """The sequence whose turn it is, those in `skip` left out; None if there is none."""
        for one in self._classes:
            heads = [next((s for s in queue if s not in skip), None) for queue in one.queues.values()]
            best = min((head for head in heads if head is not None), key=self.turn, default=None)
            if best is not None:
                return best
        return None

    def turn(self, sequence: Sequence) -> tuple[int, float, int]:
        """Sort key: class, what the key has had, arrival."""
        return (sequence.rank, self.had(sequence), sequence.arrival)

    def had(self, sequence: Sequence) -> float:
        """The counter of a sequence's key in its class, in weighted tokens."""
        one = self._classes[sequence.rank]
        had = one.counters.get(sequence.request.key)
        return one.level() if had is None else had

    def charge(self, sequence: Sequence, *, prompt: int = 0, output: int = 0) -> None:
        """Count tokens that are computed or drawn for a sequence, waiting or not."""
        one, key = self._classes[sequence.rank], sequence.request.key
        had = one.counters.get(key)
        one.counters[key] = (one.level() if had is None else had) + PROMPT_WEIGHT * prompt + OUTPUT_WEIGHT * output
