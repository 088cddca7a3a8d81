"""Who computes what in the next step: continuous batching with chunked prefill. Lists only, no tensors.

One step, in this order:
  1. requests past their deadline leave;
  2. every decoding sequence gets its one token (decode first);
  3. sequences in the middle of their prompt get what the pacer's budget allows, most urgent first;
  4. waiting requests are admitted while there is budget, a place in the batch, and pages for the *whole* prompt
     (reserve before admit: an admitted prompt can always be finished).
When a running sequence needs a page and none is left, the least urgent, latest sequence is preempted: its pages go, and it
is recomputed later from its tokens. A generation is a pure function of its tokens, so that changes nothing but time. The most
urgent sequence is never preempted, so there is always progress.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

from edgewise.core.errors import ContextLengthExceeded, InvalidRequest, QueueFull
from edgewise.engine.pacing import Pacer
from edgewise.engine.pages import PagePool
from edgewise.engine.prefix import PageHash, extend_chain
from edgewise.engine.request import GenerateRequest
from edgewise.engine.sequence import Sequence
from edgewise.engine.tiering import NoTiers, PageTiers

HOLD_S = 0.25  # longest time that a request waits for a lower cache tier to bring its pages


@dataclass(frozen=True, slots=True)
class Work:
    """Compute tokens [start, start + count) of a sequence; draw the next token afterwards if `sample`."""

    sequence: Sequence
    start: int
    count: int
    sample: bool


@dataclass(slots=True)
class StepPlan:
    """What one step does, decoding sequences first."""

    work: list[Work] = field(default_factory=list)
    expired: list[Sequence] = field(default_factory=list)

    @property
    def decoding(self) -> int:
        return sum(1 for item in self.work if item.count == 1 and item.sample)

    @property
    def prefilling(self) -> int:
        return sum(item.count for item in self.work) - self.decoding


class Scheduler:
    """Waiting and running sequences over one page pool.

    Args:
        pages: The pool; the scheduler is its only user.
        page_tokens: Tokens per page.
        max_context: Largest prompt + answer.
        max_running, max_waiting: Sequences in the batch / that may wait for a place in it.
        pacer: Budget of prompt tokens per step.
        tiers: Where pages may be that the device has no more; the same that `pages` has.
        now: Monotonic seconds.
    """

    def __init__(
        self,
        pages: PagePool,
        *,
        page_tokens: int,
        max_context: int,
        max_running: int,
        max_waiting: int,
        pacer: Pacer,
        now: Callable[[], float],
        tiers: PageTiers | None = None,
    ) -> None:
        self.pages = pages
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self.preemptions = 0
        self._page_tokens = page_tokens
        self._max_context = min(max_context, pages.num_pages * page_tokens)
        self._max_running = max_running
        self._max_waiting = max_waiting
        self._pacer = pacer
        self._now = now
        self._tiers: PageTiers = tiers or NoTiers()
        self._arrivals = 0

    def __repr__(self) -> str:
        return f"Scheduler(running={len(self.running)}, waiting={len(self.waiting)}, {self.pages!r})"

    # --- requests come and go --------------------------------------------------------------------------------------------

    def add(self, request: GenerateRequest) -> Sequence:
        """Queue a request.

        Raises:
            InvalidRequest: Empty prompt, id already in flight, or nothing left to generate.
            ContextLengthExceeded: It can never fit.
            QueueFull: As many wait as may, those for whom a place in the batch is free not counted: that many answers can
                always be asked of an idle engine at once.
        """
        self._check(request)
        if len(self.running) + len(self.waiting) >= self._max_running + self._max_waiting:
            raise QueueFull(
                f"{self._max_waiting} answers may wait beside {self._max_running} in the making, which is this service's "
                "limit: try again later.",
                retry_after_s=self._estimate_wait(),
            )
        sequence = Sequence.of(request, arrival=self._arrivals, now=self._now())
        self._arrivals += 1
        insort(self.waiting, sequence, key=lambda waiting: waiting.order)
        self._tiers.prefetch(self._prefix(sequence))
        return sequence

    def remove(self, sequence: Sequence) -> None:
        """Take a finished, cancelled or failed sequence out and free its pages."""
        if sequence in self.running:
            self.running.remove(sequence)
        else:
            self.waiting.remove(sequence)
        self._free(sequence)

    # --- one step --------------------------------------------------------------------------------------------------------

    def schedule(self) -> StepPlan:
        """Decide the next step and reserve its pages. Sequences in `expired` have left already."""
        plan = StepPlan(expired=self._expire())
        self._schedule_decodes(plan)
        budget = self._pacer.budget(len(plan.work))
        budget = self._schedule_prefills(plan, budget)
        self._admit(plan, budget)
        return plan

    def commit(self, work: Work) -> None:
        """Record that `work` has been computed: its tokens are in the cache, full pages get their names."""
        sequence = work.sequence
        sequence.computed = work.start + work.count
        known = len(sequence.chain)
        extend_chain(sequence.chain, sequence.start, sequence.tokens, self._page_tokens, sequence.computed)
        for index in range(known, len(sequence.chain)):
            self.pages.name(sequence.pages[index], sequence.chain[index])

    # --- parts -----------------------------------------------------------------------------------------------------------

    def _check(self, request: GenerateRequest) -> None:
        total = len(request.prompt) + request.sampling.max_tokens
        if not request.prompt:
            raise InvalidRequest("The prompt has no tokens: at least one is needed.", param="prompt")
        if total > self._max_context:
            raise ContextLengthExceeded(
                f"The prompt has {len(request.prompt)} tokens and up to {request.sampling.max_tokens} are to be generated, "
                f"{total} in all: the limit is {self._max_context}. Shorten the prompt or lower max_tokens.",
                param="max_tokens",
            )
        if len(request.output) >= request.sampling.max_tokens:
            raise InvalidRequest(
                f"{len(request.output)} tokens are delivered already and max_tokens is {request.sampling.max_tokens}: "
                "nothing is left to generate.",
                param="output",
            )
        if any(sequence.id == request.id for sequence in (*self.running, *self.waiting)):
            raise InvalidRequest(f"A request with id {request.id!r} is in flight already.", param="id")

    def _expire(self) -> list[Sequence]:
        now = self._now()
        late = [s for s in (*self.running, *self.waiting) if s.deadline_at is not None and s.deadline_at <= now]
        for sequence in late:
            self.remove(sequence)
        return late

    def _schedule_decodes(self, plan: StepPlan) -> None:
        for sequence in list(self.running):
            if sequence in self.running and sequence.remaining == 1 and self._reserve(sequence, plan):
                plan.work.append(Work(sequence, sequence.computed, 1, sample=True))

    def _schedule_prefills(self, plan: StepPlan, budget: int) -> int:
        for sequence in list(self.running):
            if budget <= 0:
                break
            if sequence.remaining > 1:
                budget -= self._append_prefill(plan, sequence, budget)
        return budget

    def _append_prefill(self, plan: StepPlan, sequence: Sequence, budget: int) -> int:
        count = min(sequence.remaining, budget)
        plan.work.append(Work(sequence, sequence.computed, count, sample=count == sequence.remaining))
        return count

    def _admit(self, plan: StepPlan, budget: int) -> None:
        for sequence in list(self.waiting):
            if budget <= 0 or len(self.running) >= self._max_running:
                break
            if self._held_back(sequence):
                continue
            if not self._reserve_prompt(sequence):
                break
            self.waiting.remove(sequence)
            insort(self.running, sequence, key=lambda running: running.order)
            if sequence.admitted_at is None:
                sequence.admitted_at = self._now()
            budget -= self._append_prefill(plan, sequence, budget)

    def _reserve_prompt(self, sequence: Sequence) -> bool:
        """Pages for all tokens of a waiting sequence: known ones, then those of lower tiers, then empty ones; all or nothing."""
        chain = self._prefix(sequence)
        shared = self.pages.acquire_prefix(chain)
        needed = self._pages_for(len(sequence.tokens)) - len(shared)
        # One page of headroom for each running sequence: admitting into the last page would only preempt somebody at once.
        own = self.pages.allocate(needed) if self.pages.available >= needed + len(self.running) else None
        if own is None:
            self.pages.release(shared)
            return False
        restored = self._restore(chain[len(shared) :], own)
        known = len(shared) + restored
        sequence.pages = shared + own
        sequence.chain = chain[:known]
        sequence.computed = known * self._page_tokens
        if sequence.cached_tokens is None:
            prompt = len(sequence.request.prompt)
            sequence.cached_tokens = min(sequence.computed, prompt)
            sequence.restored_tokens = max(0, sequence.cached_tokens - len(shared) * self._page_tokens)
        return True

    def _restore(self, chain: Seq[PageHash], pages: Seq[int]) -> int:
        """Load what lower tiers hold of `chain` into pages just allocated, and name them; returns how many pages that were."""
        count = self._tiers.lookup(chain) if chain else 0
        if count == 0:
            return 0
        good = self._tiers.load(chain[:count], pages[:count])
        for page, name in zip(pages[:good], chain[:good], strict=True):
            self.pages.name(page, name)
        return good

    def _held_back(self, sequence: Sequence) -> bool:
        """Whether a lower tier is bringing pages of a waiting sequence; for `HOLD_S` at most."""
        now = self._now()
        if sequence.hold_until is None:
            sequence.hold_until = now + HOLD_S
        return now < sequence.hold_until and self._tiers.pending(self._prefix(sequence))

    def _prefix(self, sequence: Sequence) -> list[PageHash]:
        """Names of the full pages that may be known already. The last token is always computed: its hidden state gives the
        first logits."""
        chain: list[PageHash] = []
        extend_chain(chain, sequence.start, sequence.tokens, self._page_tokens, len(sequence.tokens) - 1)
        return chain

    def _reserve(self, sequence: Sequence, plan: StepPlan) -> bool:
        """A page for the next token of a running sequence, preempting others if need be; False if it was preempted itself."""
        while len(sequence.pages) < self._pages_for(len(sequence.tokens)):
            page = self.pages.allocate(1)
            if page is not None:
                sequence.pages += page
                continue
            victim = self.running[-1]
            self._preempt(victim)
            plan.work = [work for work in plan.work if work.sequence is not victim]
            if victim is sequence:
                return False
        return True

    def _preempt(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self._free(sequence)
        sequence.preemptions += 1
        self.preemptions += 1
        insort(self.waiting, sequence, key=lambda waiting: waiting.order)

    def _free(self, sequence: Sequence) -> None:
        self.pages.release(sequence.pages)
        sequence.pages = []
        sequence.chain = []
        sequence.computed = 0

    def _pages_for(self, tokens: int) -> int:
        return -(-tokens // self._page_tokens)

    def _estimate_wait(self) -> float:
        """Seconds until a place in the queue is likely free: a guess from the oldest running request's age, 1 to 60."""
        if not self.running:
            return 1.0
        oldest = min(sequence.added_at for sequence in self.running)
        return min(60.0, max(1.0, (self._now() - oldest) / 2))
