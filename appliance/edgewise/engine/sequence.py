"""The engine's book-keeping for one request in flight."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from edgewise.engine.pages import Parked
from edgewise.engine.prefix import PageHash, chain_start
from edgewise.engine.request import EncoderUse, GenerateRequest, RequestStats
from edgewise.engine.spans import NO_SPANS, Spans
from edgewise.engine.speculation.guesser import Guesser

if TYPE_CHECKING:
    from edgewise.models.adapters.loading import Adapter


@dataclass(slots=True, eq=False)
class Sequence:
    """A request and how far it has come.

    Attributes:
        tokens: Prompt and output so far.
        rank: Deadline class in force: the request's own, or a more urgent one that it has been promoted to by its age.
        computed: Leading tokens whose keys and values are in the cache, or parked.
        pages: KV pages in order; enough for `computed` tokens and for what is scheduled next.
        parked: Pages of a preempted sequence that are kept until it runs again; None while it runs.
        names: Names of its full pages, as far as they are known: a function of its tokens.
        named: Leading pages whose names the page pool has been told.
        blocked_at: State of the page pool (`PagePool.returned`) in which there was no room for it.
        arrival: Running number; the tie-break inside a priority class, kept through preemption.
        queued_at: Engine clock when it began to wait this time; `waited_s` are the seconds it had waited before.
        deadline_at: Engine clock in seconds, or None.
        cached_tokens: Prompt tokens that the prefix cache spared at first admission; None before it.
        restored_tokens: Those of them that came back from a lower cache tier.
        spans: Its media.
        plain_greedy: As of its sampling parameters (`SamplingParams.plain_greedy`).
        grammar: Done when the grammar that it follows is compiled; None if it follows none.
        adapter: What its request asks for, in memory.
        guesser: What is remembered of guesses at its tokens; None before the first.
        proposed_tokens, accepted_tokens: Guessed tokens that were computed, and those of them that were right.
        device_s: Seconds of steps that it had: its share of each by tokens, and all that encoders took for it.
        encoded: What encoders did for it, by kind of medium.
        hold_until: Engine clock until which it may wait for a lower tier to bring its pages; None before it was asked.
    """

    request: GenerateRequest
    arrival: int
    added_at: float
    deadline_at: float | None
    tokens: list[int]
    start: PageHash
    rank: int
    queued_at: float
    waited_s: float = 0.0
    computed: int = 0
    pages: list[int] = field(default_factory=list)
    parked: Parked | None = None
    names: list[PageHash] = field(default_factory=list)
    named: int = 0
    blocked_at: int | None = None
    cached_tokens: int | None = None
    restored_tokens: int = 0
    spans: Spans = NO_SPANS
    plain_greedy: bool = False
    grammar: Future[Any] | None = None
    hold_until: float | None = None
    admitted_at: float | None = None
    first_token_at: float | None = None
    preemptions: int = 0
    adapter: Adapter | None = None
    guesser: Guesser | None = None
    proposed_tokens: int = 0
    accepted_tokens: int = 0
    device_s: float = 0.0
    encoded: dict[str, EncoderUse] = field(default_factory=dict)

    @classmethod
    def of(cls, request: GenerateRequest, *, arrival: int, now: float) -> Sequence:
        deadline = None if request.deadline_s is None else now + request.deadline_s
        return cls(
            request=request,
            arrival=arrival,
            added_at=now,
            deadline_at=deadline,
            tokens=[*request.prompt, *request.output],
            start=chain_start(request.salt, request.apart, "" if request.adapter is None else request.adapter.digest),
            rank=int(request.priority),
            queued_at=now,
            spans=Spans(request.media, len(request.prompt)) if request.media else NO_SPANS,
            plain_greedy=request.sampling.plain_greedy,
        )

    @property
    def id(self) -> str:
        return self.request.id

    @property
    def key(self) -> str:
        return self.request.key

    @property
    def order(self) -> tuple[int, int]:
        """Sort key of scheduling: most urgent class first, then first come."""
        return (self.rank, self.arrival)

    @property
    def remaining(self) -> int:
        """Tokens still to compute before the next one can be drawn."""
        return len(self.tokens) - self.computed

    @property
    def decoding(self) -> bool:
        """Whether one token is all that is to be computed, and no placeholder of a medium."""
        return self.remaining == 1 and self.computed >= self.spans.end

    @property
    def generated(self) -> int:
        """Tokens of the answer so far, those delivered by an earlier engine included."""
        return len(self.tokens) - len(self.request.prompt)

    def encoded_for(self, kind: str, rung: str, seconds: float, *, whole: bool) -> None:
        """An encoder has worked for it; `whole`: and is done with a medium."""
        known = self.encoded.get(kind, EncoderUse(unit=kind, rung=rung))
        self.encoded[kind] = replace(known, rung=rung, seconds=known.seconds + seconds, media=known.media + int(whole))
        self.device_s += seconds

    def waited(self, now: float) -> float:
        """Seconds in the queue in all, of a sequence that waits."""
        return self.waited_s + now - self.queued_at

    def account(self, now: float) -> RequestStats:
        """What it has cost so far."""
        admitted = self.admitted_at if self.admitted_at is not None else now
        first = self.first_token_at if self.first_token_at is not None else now
        return RequestStats(
            prompt_tokens=len(self.request.prompt),
            cached_tokens=self.cached_tokens or 0,
            completion_tokens=self.generated,
            queued_s=admitted - self.added_at,
            prefill_s=first - admitted,
            decode_s=now - first,
            preemptions=self.preemptions,
            restored_tokens=self.restored_tokens,
            proposed_tokens=self.proposed_tokens,
            accepted_tokens=self.accepted_tokens,
            device_s=self.device_s,
            encoders=tuple(self.encoded.values()),
        )

    def __repr__(self) -> str:
        return f"Sequence({self.id}: {self.computed}/{len(self.tokens)} computed, {len(self.pages)} pages)"
