"""The queue, and whose turn it is in it: the most urgent class first, in a class the caller who has had least, then first come.

What a caller has had is a virtual counter for each class and key (`engine.had`), of what the engine says its work costs: for
tokens those of Sheng et al., prompt tokens once when they are admitted, generated tokens twice when they are drawn; time of
encoders is charged in the same unit. Between two keys of a class that both have requests waiting all the time, the counters never
differ by more than twice the larger of the largest prompt and twice the tokens that one batch can generate for requests admitted
at a difference of nothing: a bound that does not grow with time. A hundred requests of one key delay another key's single one by
one turn, not by a hundred.

A key may also have had more than others from other engines of the device (`engine.pool.shares`). That lead counts beside its
counter, as far as the counter does not say so already; it moves nobody else's.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Container, Iterator
from typing import Generic, Protocol, TypeVar

from edgewise.core.priority import Priority
from edgewise.engine.had import Had

PROMPT_WEIGHT = 1.0
OUTPUT_WEIGHT = 2.0


class Queued(Protocol):
    """What waits. `rank` is its deadline class, `arrival` its place among those of its key."""

    @property
    def rank(self) -> int: ...

    @property
    def arrival(self) -> int: ...

    @property
    def key(self) -> str: ...


QueuedT = TypeVar("QueuedT", bound=Queued)


class _Class(Generic[QueuedT]):
    """What waits of one deadline class, by key and in order of arrival; what each key has had, and its lead elsewhere."""

    def __init__(self) -> None:
        self.queues: dict[str, list[QueuedT]] = {}
        self.leads: dict[str, float] = {}
        self.had = Had()


class WaitingQueue(Generic[QueuedT]):
    """Requests that wait for a place in the batch. Iterates in no particular order."""

    def __init__(self) -> None:
        self._classes: list[_Class[QueuedT]] = [_Class() for _ in Priority]
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[QueuedT]:
        return (one for each in self._classes for queue in each.queues.values() for one in queue)

    def __contains__(self, queued: object) -> bool:
        return any(queued is waiting for waiting in self)

    def push(self, queued: QueuedT, *, lead: float | None = None) -> None:
        """Queue something under its class and key, at its place by arrival.

        Args:
            lead: What its key has had on the whole device beyond the key that has had least, in this queue's unit; None leaves
                what was said before.
        """
        one, key = self._classes[queued.rank], queued.key
        if key not in one.queues:
            one.had.enter(key)
            one.queues[key] = []
        if lead is not None:
            one.leads[key] = max(0.0, lead - (one.had.of(key) - one.had.level()))
        insort(one.queues[key], queued, key=lambda waiting: waiting.arrival)
        self._size += 1

    def remove(self, queued: QueuedT) -> None:
        """Raises ValueError if it does not wait."""
        one, key = self._classes[queued.rank], queued.key
        queue = one.queues.get(key, [])
        queue.remove(queued)
        self._size -= 1
        if not queue:
            del one.queues[key]
            one.leads.pop(key, None)
            one.had.leave(key)

    def first(self, skip: Container[QueuedT] = ()) -> QueuedT | None:
        """That whose turn it is, those in `skip` left out; None if there is none."""
        for one in self._classes:
            heads = [next((waiting for waiting in queue if waiting not in skip), None) for queue in one.queues.values()]
            best = min((head for head in heads if head is not None), key=self.turn, default=None)
            if best is not None:
                return best
        return None

    def take(self, most: int, each: float) -> list[QueuedT]:
        """Out of the queue, `most` at most, in their turns, as if every one taken cost its key `each` already."""
        taken: list[QueuedT] = []
        for one in self._classes:
            virtual = {key: self._virtual(one, key) for key in one.queues}
            while one.queues and len(taken) < most:
                key = min(one.queues, key=lambda key: (virtual[key], one.queues[key][0].arrival))
                virtual[key] += each
                taken.append(one.queues[key][0])
                self.remove(taken[-1])
        return taken

    def waiting(self, key: str) -> int:
        """How many of a key wait, whatever their class."""
        return sum(len(one.queues.get(key, ())) for one in self._classes)

    @property
    def keys(self) -> int:
        """How many keys wait."""
        return len({key for one in self._classes for key in one.queues})

    def turn(self, queued: QueuedT) -> tuple[int, float, int]:
        """Sort key: class, what the key has had, arrival."""
        return (queued.rank, self._virtual(self._classes[queued.rank], queued.key), queued.arrival)

    def had(self, queued: QueuedT) -> float:
        """The counter of its key in its class."""
        return self._classes[queued.rank].had.of(queued.key)

    def charge(self, queued: QueuedT, amount: float) -> None:
        """Count what was done for a request, waiting or not."""
        self._classes[queued.rank].had.charge(queued.key, amount)

    def _virtual(self, one: _Class[QueuedT], key: str) -> float:
        return one.had.of(key) + one.leads.get(key, 0.0)
