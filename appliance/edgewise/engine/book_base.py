"""Which requests are open, and how they survive the engine's lives, whatever they ask for. Pure: no I/O, no clock.

A request is *open* from `open` to its final chunk. While the engine is up, open requests are *sent*; when it goes down (`down`)
they are sent again to the next life. What "again" means, and which chunks are news, is the matter of each kind of request:
`engine.book` (tokens) and `engine.pictures.book`.

Rules:

- **Stale.** Chunks of another epoch or of unknown requests are dropped.
- **Strikes.** Each end of a life is a strike for every request that was sent in it. At the limit the request fails with
  `engine_error`: it, or its company, kills engines.
- **Probation.** A request one strike short of the limit is sent only while no other such request is with the engine. So the
  requests that merely were in bad company clear themselves one by one, and only the culprit reaches the limit.
- **Deadlines** run from the first submission on; what is left is sent along, and an expired request ends here even if no
  engine is there to end it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, Protocol, TypeAlias, TypeVar

from edgewise.core.errors import Cancelled, DeadlineExceeded, EdgewiseError, EngineFault, InvalidRequest
from edgewise.engine.messages import Cancel, Message

DEADLINE_GRACE_S = 1.0
"""How long the engine may be late with its own answer to an expired deadline before it is given here."""
RETRY_S = 0.5
"""Pause before a resumed request is offered again to an engine whose queue was full."""


class Asked(Protocol):
    """A request: `engine.request.GenerateRequest` or `engine.pictures.request.DiffuseRequest`."""

    @property
    def id(self) -> str: ...

    @property
    def deadline_s(self) -> float | None: ...


class Answered(Protocol):
    """A chunk: `engine.request.TokenChunk` or `engine.pictures.request.DiffuseChunk`."""

    @property
    def request_id(self) -> str: ...


RequestT = TypeVar("RequestT", bound=Asked)
ChunkT = TypeVar("ChunkT", bound=Answered)


@dataclass(frozen=True, slots=True)
class Send:
    """Give this message to the engine."""

    message: Message


@dataclass(frozen=True, slots=True)
class Accept:
    """The submission has succeeded."""

    key: str


@dataclass(frozen=True, slots=True)
class Refuse:
    """The submission has failed; the request is no longer open."""

    key: str
    error: EdgewiseError


@dataclass(frozen=True, slots=True)
class Deliver:
    """Give this chunk to the consumer; after one with `finish` the request is no longer open."""

    key: str
    chunk: Any


Action: TypeAlias = Send | Accept | Refuse | Deliver
Ending = Literal["cancelled", "error"]


@dataclass(slots=True)
class Entry(Generic[RequestT]):
    """An open request.

    Attributes:
        key: Its name on the wire, unique in the service's life, so that a caller may use an id again after a cancel.
        submission: The message of its first submission; later ones differ in the deadline and in what was delivered.
        life: Epoch in which it was sent; None while it is held back.
        strikes: Lives that ended with it on board since its last sign of progress.
    """

    key: str
    request: RequestT
    submission: Message
    opened: float
    life: int | None = None
    accepted: bool = False
    strikes: int = 0
    restarts: int = 0
    not_before: float = 0.0

    @property
    def expires(self) -> float | None:
        deadline = self.request.deadline_s
        return None if deadline is None else self.opened + deadline


EntryT = TypeVar("EntryT", bound=Entry[Any])


@dataclass(slots=True)
class Counters:
    """For tests and the log."""

    resumed: int = 0
    stale: int = 0
    poisoned: int = 0


@dataclass(slots=True, repr=False)
class Book(ABC, Generic[RequestT, ChunkT, EntryT]):
    """See the module's docstring. Methods return what is to be done, in order; `now` is a monotonic time in seconds."""

    strike_limit: int = 3
    epoch: int | None = None
    counters: Counters = field(default_factory=Counters)
    _entries: dict[str, EntryT] = field(default_factory=dict)
    _held: dict[str, EntryT] = field(default_factory=dict)
    _keys: dict[str, str] = field(default_factory=dict)
    _tickets: int = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        name = type(self).__name__
        return f"{name}(epoch={self.epoch}, open={len(self._entries)}, held={len(self._held)}, {self.counters})"

    # --- what each kind of request brings ------------------------------------------------------------------------------

    @abstractmethod
    def _entry(self, key: str, request: RequestT, now: float) -> EntryT:
        """Raises `InvalidRequest` if no message can be made of it."""

    @abstractmethod
    def _message(self, entry: EntryT, left_s: float | None) -> Message:
        """What is sent to the present life."""

    @abstractmethod
    def _chunk(self, entry: EntryT, chunk: ChunkT, now: float) -> list[Action]:
        """A chunk of this life has come."""

    @abstractmethod
    def _ended(self, entry: EntryT, finish: Ending, error: EdgewiseError, now: float) -> ChunkT:
        """The final chunk of a request that is ended here."""

    @abstractmethod
    def _reached(self, entry: EntryT) -> str:
        """How far it came, for messages: "12 tokens"."""

    def _finish_if_complete(self, entry: EntryT, now: float) -> list[Action]:
        """End a request of which only the final chunk is missing."""
        del entry, now
        return []

    # --- requests ------------------------------------------------------------------------------------------------------

    def open(self, request: RequestT, now: float) -> tuple[str, list[Action]]:
        """Take a request in and return its key.

        Raises:
            InvalidRequest: Its id is in flight already, or no message can be made of it.
        """
        if request.id in self._keys:
            raise InvalidRequest(f"A request with the id '{request.id}' is in flight already.", param="id")
        self._tickets += 1
        key = f"{request.id}~{self._tickets}"
        entry = self._entry(key, request, now)
        self._entries[key] = entry
        self._held[key] = entry
        self._keys[request.id] = key
        return key, self._finish_if_complete(entry, now) or self._admit(now)

    def cancel(self, key: str, now: float) -> list[Action]:
        """Forget a request whose consumer has left; unknown keys are ignored."""
        entry = self._entries.get(key)
        if entry is None:
            return []
        self._forget(entry)
        return [*self._withdraw(entry), *self._admit(now)]

    def tick(self, now: float) -> list[Action]:
        """End what has expired and offer again what was held back."""
        actions: list[Action] = []
        for entry in list(self._entries.values()):
            grace = 0.0 if entry.life is None else DEADLINE_GRACE_S
            if entry.expires is not None and now >= entry.expires + grace:
                actions += self._expire(entry, now)
        return actions + self._admit(now)

    def fail_all(self, error: EdgewiseError, now: float) -> list[Action]:
        """End every open request with an error."""
        actions: list[Action] = []
        for entry in list(self._entries.values()):
            actions += self._fail(entry, error, now)
        return actions

    # --- the engine's lives --------------------------------------------------------------------------------------------

    def begin(self, epoch: int, now: float) -> list[Action]:
        """A life has begun: send what is open."""
        self.epoch = epoch
        return self._admit(now)

    def down(self, now: float) -> list[Action]:
        """The life has ended: nothing more is taken from it."""
        self.epoch = None
        actions: list[Action] = []
        for entry in list(self._entries.values()):
            if entry.life is None:
                continue
            self._hold(entry)
            entry.strikes += 1
            entry.restarts += 1
            actions += self._finish_if_complete(entry, now) or self._fail_if_poison(entry, now)
        return actions

    # --- answers -------------------------------------------------------------------------------------------------------

    def accepted(self, epoch: int, key: str) -> list[Action]:
        entry = self._present(epoch, key)
        return [] if entry is None else self.accepted_if_new(entry)

    def refused(self, epoch: int, key: str, error: EdgewiseError, now: float) -> list[Action]:
        """A first submission is refused to its caller; a resumed one waits for room or ends, as the error says."""
        entry = self._present(epoch, key)
        if entry is None:
            return []
        self._hold(entry)
        if entry.accepted and error.retryable:
            entry.not_before = now + min(error.retry_after_s or RETRY_S, RETRY_S)
            return self._admit(now)
        return [*self._fail(entry, error, now), *self._admit(now)]

    def chunks(self, epoch: int, chunks: Iterable[ChunkT], now: float) -> list[Action]:
        actions: list[Action] = []
        for chunk in chunks:
            entry = self._present(epoch, chunk.request_id)
            if entry is not None:
                actions += self._chunk(entry, chunk, now)
        return actions

    def accepted_if_new(self, entry: EntryT) -> list[Action]:
        if entry.accepted:
            return []
        entry.accepted = True
        return [Accept(entry.key)]

    # --- inside --------------------------------------------------------------------------------------------------------

    def _present(self, epoch: int, key: str) -> EntryT | None:
        """The entry a message is about, if it is of this life."""
        entry = self._entries.get(key)
        if entry is None or epoch != self.epoch or entry.life != epoch:
            self.counters.stale += 1
            return None
        return entry

    def _admit(self, now: float) -> list[Action]:
        """Send the held requests that may go."""
        if self.epoch is None or not self._held:
            return []
        actions: list[Action] = []
        probation_free = not any(
            self._on_probation(entry) and entry.life is not None for entry in self._entries.values()
        )
        for entry in list(self._held.values()):
            suspect = self._on_probation(entry)
            if now < entry.not_before or (suspect and not probation_free):
                continue
            if entry.expires is not None and now >= entry.expires:
                actions += self._expire(entry, now)
                continue
            probation_free = probation_free and not suspect
            actions.append(self._send(entry, self.epoch, now))
        return actions

    def _send(self, entry: EntryT, epoch: int, now: float) -> Send:
        del self._held[entry.key]
        entry.life = epoch
        self.counters.resumed += entry.restarts > 0
        return Send(self._message(entry, None if entry.expires is None else entry.expires - now))

    def _on_probation(self, entry: EntryT) -> bool:
        return entry.strikes > 0 and entry.strikes >= self.strike_limit - 1

    def _hold(self, entry: EntryT) -> None:
        entry.life = None
        self._held[entry.key] = entry

    def _forget(self, entry: EntryT) -> None:
        del self._entries[entry.key]
        self._held.pop(entry.key, None)
        del self._keys[entry.request.id]

    def _withdraw(self, entry: EntryT) -> list[Action]:
        return [] if entry.life is None or entry.life != self.epoch else [Send(Cancel(id=entry.key))]

    def _skipped(self, entry: EntryT, offset: int, now: float) -> list[Action]:
        """A chunk begins beyond what was delivered: something is lost, and the request with it."""
        error = EngineFault(
            f"The engine skipped a part of request '{entry.request.id}': {self._reached(entry)} were delivered, the next "
            f"chunk starts at {offset}."
        )
        return [*self._withdraw(entry), *self._fail(entry, error, now), *self._admit(now)]

    def _fail_if_poison(self, entry: EntryT, now: float) -> list[Action]:
        if entry.strikes < self.strike_limit:
            return []
        self.counters.poisoned += 1
        error = EngineFault(
            f"The engine failed {entry.strikes} times in a row while working on this request; it is not tried again."
        )
        return self._fail(entry, error, now)

    def _expire(self, entry: EntryT, now: float) -> list[Action]:
        error = DeadlineExceeded(
            f"The request's deadline of {entry.request.deadline_s:g} s has passed after {self._reached(entry)}."
        )
        return [*self._withdraw(entry), *self._fail(entry, error, now)]

    def _fail(self, entry: EntryT, error: EdgewiseError, now: float) -> list[Action]:
        if entry.key in self._entries:
            self._forget(entry)
        if not entry.accepted:
            return [Refuse(entry.key, error)]
        finish: Ending = "cancelled" if isinstance(error, Cancelled) else "error"
        return [Deliver(entry.key, self._ended(entry, finish, error, now))]
