"""Which requests are open, what has been delivered of each, and how they survive the engine's lives. Pure: no I/O, no clock.

A request is *open* from `open` to its final chunk. While the engine is up (`up`), open requests are *sent*; when it goes down
(`down`) they are sent again to the next life with everything delivered so far as `output`, which continues them exactly.

Rules:

- **Stale and double.** Chunks of another epoch or of unknown requests are dropped. Tokens below the offset reached are cut
  off; a chunk above it means that something was lost and ends the request with `engine_error`.
- **Complete without the engine.** If the tokens delivered end with a stop id, or number `max_tokens`, or fill the model's
  context, only the final chunk was lost: it is made here ("stop" before "length") instead of asking an engine to generate
  nothing.
- **Strikes.** Each end of a life is a strike for every request that was sent in it; a delivered token clears them. At the limit
  the request fails with `engine_error`: it, or its company, kills engines.
- **Probation.** A request one strike short of the limit is sent only while no other such request is with the engine. So the
  requests that merely were in bad company clear themselves one by one, and only the culprit reaches the limit.
- **Deadlines** run from the first submission on; what is left is sent along, and an expired request ends here even if no
  engine is there to end it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from msgspec import structs

from edgewise.core.errors import Cancelled, DeadlineExceeded, EdgewiseError, EngineFault, InvalidRequest
from edgewise.engine.messages import Cancel, Message, Submit, pack
from edgewise.engine.request import FinishReason, GenerateRequest, RequestStats, TokenChunk

DEADLINE_GRACE_S = 1.0
"""How long the engine may be late with its own answer to an expired deadline before it is given here."""
RETRY_S = 0.5
"""Pause before a resumed request is offered again to an engine whose queue was full."""


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
    chunk: TokenChunk


Action: TypeAlias = Send | Accept | Refuse | Deliver


@dataclass(slots=True)
class Entry:
    """An open request.

    Attributes:
        key: Its name on the wire, unique in the service's life, so that a caller may use an id again after a cancel.
        submission: The message of its first submission; later ones differ in `output` and `deadline_s`.
        output: Tokens delivered, those the caller already had included.
        life: Epoch in which it was sent; None while it is held back.
        strikes: Lives that ended with it on board since its last token.
    """

    key: str
    request: GenerateRequest
    submission: Submit
    opened: float
    output: list[int]
    life: int | None = None
    accepted: bool = False
    strikes: int = 0
    restarts: int = 0
    first_token: float | None = None
    not_before: float = 0.0

    @property
    def expires(self) -> float | None:
        deadline = self.request.deadline_s
        return None if deadline is None else self.opened + deadline


@dataclass(slots=True)
class Counters:
    """For tests and the log."""

    resumed: int = 0
    stale: int = 0
    poisoned: int = 0


@dataclass(slots=True)
class RequestBook:
    """See the module's docstring. Methods return what is to be done, in order; `now` is a monotonic time in seconds."""

    strike_limit: int = 3
    epoch: int | None = None
    max_context: int | None = None
    counters: Counters = field(default_factory=Counters)
    _entries: dict[str, Entry] = field(default_factory=dict)
    _held: dict[str, Entry] = field(default_factory=dict)
    _keys: dict[str, str] = field(default_factory=dict)
    _tickets: int = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        return f"RequestBook(epoch={self.epoch}, open={len(self._entries)}, held={len(self._held)}, {self.counters})"

    # --- requests ----------------------------------------------------------------------------------------------------

    def open(self, request: GenerateRequest, now: float) -> tuple[str, list[Action]]:
        """Take a request in and return its key.

        Raises:
            InvalidRequest: Its id is in flight already, or a token id is no unsigned 32-bit number.
        """
        if request.id in self._keys:
            raise InvalidRequest(f"A request with the id '{request.id}' is in flight already.", param="id")
        self._tickets += 1
        key = f"{request.id}~{self._tickets}"
        submission = Submit.of(replace(request, id=key))
        entry = Entry(key=key, request=request, submission=submission, opened=now, output=list(request.output))
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

    # --- the engine's lives ------------------------------------------------------------------------------------------

    def up(self, epoch: int, max_context: int, now: float) -> list[Action]:
        """A life has begun: send what is open."""
        self.epoch, self.max_context = epoch, max_context
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

    # --- answers -----------------------------------------------------------------------------------------------------

    def accepted(self, epoch: int, key: str) -> list[Action]:
        entry = self._present(epoch, key)
        if entry is None or entry.accepted:
            return []
        entry.accepted = True
        return [Accept(key)]

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

    def chunks(self, epoch: int, chunks: Iterable[TokenChunk], now: float) -> list[Action]:
        actions: list[Action] = []
        for chunk in chunks:
            entry = self._present(epoch, chunk.request_id)
            if entry is not None:
                actions += self._chunk(entry, chunk, now)
        return actions

    def _chunk(self, entry: Entry, chunk: TokenChunk, now: float) -> list[Action]:
        reached = len(entry.output)
        if chunk.offset > reached:
            error = EngineFault(
                f"The engine skipped tokens of request '{entry.request.id}': {reached} were delivered, "
                f"the next chunk starts at {chunk.offset}."
            )
            return [*self._withdraw(entry), *self._fail(entry, error, now), *self._admit(now)]
        chunk = _without_first(chunk, reached - chunk.offset)
        if not chunk.tokens and chunk.finish is None:
            self.counters.stale += 1
            return []
        actions = self.accepted_if_new(entry)
        if chunk.tokens:
            entry.output += chunk.tokens
            entry.strikes = 0
            entry.first_token = now if entry.first_token is None else entry.first_token
        if chunk.finish is not None:
            self._forget(entry)
        actions.append(Deliver(entry.key, _relabel(entry, chunk, now)))
        return actions + self._admit(now) if self._held else actions

    def accepted_if_new(self, entry: Entry) -> list[Action]:
        if entry.accepted:
            return []
        entry.accepted = True
        return [Accept(entry.key)]

    # --- inside ------------------------------------------------------------------------------------------------------

    def _present(self, epoch: int, key: str) -> Entry | None:
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

    def _send(self, entry: Entry, epoch: int, now: float) -> Send:
        del self._held[entry.key]
        entry.life = epoch
        self.counters.resumed += entry.restarts > 0
        left = None if entry.expires is None else entry.expires - now
        return Send(structs.replace(entry.submission, output=pack(entry.output, "output"), deadline_s=left))

    def _on_probation(self, entry: Entry) -> bool:
        return entry.strikes > 0 and entry.strikes >= self.strike_limit - 1

    def _hold(self, entry: Entry) -> None:
        entry.life = None
        self._held[entry.key] = entry

    def _forget(self, entry: Entry) -> None:
        del self._entries[entry.key]
        self._held.pop(entry.key, None)
        del self._keys[entry.request.id]

    def _withdraw(self, entry: Entry) -> list[Action]:
        return [] if entry.life is None or entry.life != self.epoch else [Send(Cancel(id=entry.key))]

    def _finish_if_complete(self, entry: Entry, now: float) -> list[Action]:
        finish = _completed(entry, self.max_context)
        if finish is None:
            return []
        self._forget(entry)
        return [*self.accepted_if_new(entry), Deliver(entry.key, _final(entry, finish, now))]

    def _fail_if_poison(self, entry: Entry, now: float) -> list[Action]:
        if entry.strikes < self.strike_limit:
            return []
        self.counters.poisoned += 1
        error = EngineFault(
            f"The engine failed {entry.strikes} times in a row while working on this request; it is not tried again."
        )
        return self._fail(entry, error, now)

    def _expire(self, entry: Entry, now: float) -> list[Action]:
        error = DeadlineExceeded(
            f"The request's deadline of {entry.request.deadline_s:g} s has passed after {len(entry.output)} tokens."
        )
        return [*self._withdraw(entry), *self._fail(entry, error, now)]

    def _fail(self, entry: Entry, error: EdgewiseError, now: float) -> list[Action]:
        if entry.key in self._entries:
            self._forget(entry)
        if not entry.accepted:
            return [Refuse(entry.key, error)]
        finish: FinishReason = "cancelled" if isinstance(error, Cancelled) else "error"
        return [
            Deliver(entry.key, replace(_final(entry, finish, now), error_code=error.code, error_message=error.message))
        ]


def _completed(entry: Entry, max_context: int | None) -> FinishReason | None:
    """How a request ends whose tokens are all there, or None if the engine has still something to do."""
    sampling, output = entry.request.sampling, entry.output
    if output and output[-1] in sampling.stop_token_ids:
        return "stop"
    if len(output) >= sampling.max_tokens:
        return "length"
    if output and max_context is not None and len(entry.request.prompt) + len(output) >= max_context:
        return "length"
    return None


def _without_first(chunk: TokenChunk, count: int) -> TokenChunk:
    if count == 0:
        return chunk
    logprobs = None if chunk.logprobs is None else chunk.logprobs[count:]
    kept = chunk.tokens[count:]
    return replace(chunk, offset=chunk.offset + len(chunk.tokens) - len(kept), tokens=kept, logprobs=logprobs)


def _relabel(entry: Entry, chunk: TokenChunk, now: float) -> TokenChunk:
    """The engine's chunk under the caller's request id; after a restart with times that span all lives."""
    stats = chunk.stats
    if (stats is None and chunk.finish is not None) or (stats is not None and entry.restarts):
        whole = _stats(entry, now)
        stats = whole if stats is None else replace(
            whole,
            cached_tokens=stats.cached_tokens,
            restored_tokens=stats.restored_tokens,
            queued_s=stats.queued_s,
            preemptions=stats.preemptions,
        )  # fmt: skip
    return replace(chunk, request_id=entry.request.id, stats=stats)


def _final(entry: Entry, finish: FinishReason, now: float) -> TokenChunk:
    return TokenChunk(
        request_id=entry.request.id,
        offset=len(entry.output),
        tokens=(),
        logprobs=None if entry.request.sampling.top_logprobs is None else (),
        finish=finish,
        stats=_stats(entry, now),
    )


def _stats(entry: Entry, now: float) -> RequestStats:
    """Facts as seen from the service: time to the first token counts as prefill, the rest as decode."""
    first = now if entry.first_token is None else entry.first_token
    return RequestStats(
        prompt_tokens=len(entry.request.prompt),
        cached_tokens=0,
        completion_tokens=len(entry.output),
        queued_s=0.0,
        prefill_s=first - entry.opened,
        decode_s=now - first,
        restarts=entry.restarts,
    )
