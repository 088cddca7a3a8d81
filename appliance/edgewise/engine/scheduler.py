"""Who computes what in the next step: continuous batching with chunked prefill. Lists only, no tensors.

One step, in this order:
  1. requests past their deadline leave; those that have waited very long count as one class more urgent;
  2. realtime requests are admitted, whoever has to make room;
  3. every decoding sequence gets its one token (decode first). While the prompt of a realtime request is being computed, the
     streams of background and bulk sit out, and those of interactive every other step: a short prompt has the step to itself;
  4. prompts get what the pacer's budget allows: those under way and those that wait, in order of class, of what their key has
     had (`engine.fairness`; encoders of its pictures and sound count), and of arrival. A waiting one is admitted if there is a
     place in the batch and pages for its *whole* prompt (reserve before admit: an admitted prompt can always be finished). A
     realtime prompt shares its step with realtime prompts only;
  5. where no prompt is waiting for its turn, decoding sequences may carry guesses at their next tokens (`engine.speculation`).
     Pages for them are taken from what nobody holds.

Preemption. A sequence that needs a page when none is left takes it from the least urgent, latest one. A waiting request that
finds no place takes one from sequences of a less urgent class, and only if that is certain to be enough; never from its own
class, so that equals do not push each other out in turn. What a preempted sequence has computed is parked (`engine.pages`) or
computed again later, by measured cost. A generation is a pure function of its tokens, so that changes nothing but time. The most
urgent sequence is never preempted by one that is not more urgent, so there is always progress.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, replace

from edgewise.core.errors import ContextLengthExceeded, InvalidRequest, QueueFull
from edgewise.core.priority import Priority
from edgewise.engine.chunking import Chunks, MediaPlan, MediaRows, NoMedia, Pace
from edgewise.engine.fairness import OUTPUT_WEIGHT, PROMPT_WEIGHT, WaitingQueue
from edgewise.engine.pacing import Pacer
from edgewise.engine.pages import PagePool
from edgewise.engine.request import GenerateRequest
from edgewise.engine.residency import Residency
from edgewise.engine.sequence import Sequence
from edgewise.engine.speculation.speculator import Speculates
from edgewise.engine.step_cost import PromptLoad
from edgewise.engine.tiering import NoTiers, PageTiers

HOLD_S = 0.25  # longest time that a request waits for a lower cache tier to bring its pages
_AGEING_LOOKS = 16  # how often in `ageing_s` the queue is looked through


@dataclass(frozen=True, slots=True)
class Work:
    """Compute tokens [start, start + count) of a sequence; draw the next token afterwards if `sample`.

    `proposed` are the last of those tokens where they are guesses, which the sequence does not have yet: a token is drawn after
    each, for as long as the draws agree with the guesses.
    """

    sequence: Sequence
    start: int
    count: int
    sample: bool
    proposed: tuple[int, ...] = ()

    @property
    def tokens(self) -> list[int]:
        """Those that are computed."""
        known = self.sequence.tokens[self.start : self.start + self.count - len(self.proposed)]
        return [*known, *self.proposed]


@dataclass(slots=True)
class StepPlan:
    """What one step does: `decoding` sequences get their next token, they come first; the rest is `load`, prompts, with
    `media`."""

    work: list[Work] = field(default_factory=list)
    expired: list[Sequence] = field(default_factory=list)
    decoding: int = 0
    load: PromptLoad = field(default_factory=PromptLoad)
    media: MediaPlan = field(default_factory=MediaPlan)

    @property
    def prefilling(self) -> int:
        return self.load.tokens

    @property
    def proposed(self) -> int:
        """Guessed tokens."""
        return sum(len(work.proposed) for work in self.work)

    def decode(self, sequence: Sequence) -> None:
        self.work.append(Work(sequence, sequence.computed, 1, sample=True))
        self.decoding += 1

    def prefill(self, sequence: Sequence, count: int) -> None:
        """Add tokens of a sequence's prompt."""
        self.work.append(Work(sequence, sequence.computed, count, sample=count == sequence.remaining))
        self.load = self.load.plus(sequence.computed, count)

    def propose(self, place: int, proposed: tuple[int, ...]) -> None:
        """Have the decode at `place` of `work` carry guesses."""
        decode = self.work[place]
        self.work[place] = replace(decode, count=1 + len(proposed), proposed=proposed)

    def drop(self, victim: Sequence) -> None:
        """Take a preempted or failed sequence out again, if it is in."""
        decodes, prompts = self.work[: self.decoding], self.work[self.decoding :]
        decodes, prompts = ([work for work in part if work.sequence is not victim] for part in (decodes, prompts))
        self.work, self.decoding, self.load = [*decodes, *prompts], len(decodes), PromptLoad()
        for work in prompts:
            self.load = self.load.plus(work.start, work.count)


class Scheduler:
    """Waiting and running sequences over one page pool.

    Args:
        pages: The pool; the scheduler is its only user.
        page_tokens: Tokens per page.
        max_context: Largest prompt + answer.
        max_running, max_waiting: Sequences in the batch / that may wait for a place in it, of one class and more urgent ones.
        pacer: Budget of prompt tokens per step.
        now: Monotonic seconds.
        ageing_s: Seconds in the queue for which a request is promoted by one class, at most to interactive; 0 for never.
        tiers: Where pages may be that the device has no more; the same that `pages` has.
        rows: Media that are encoded already.
        speculator: Guesses at next tokens; None for none.
        max_rows: Tokens that decoding sequences may have in one step, guesses included.
        answers_apart: As of `Residency`.
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
        ageing_s: float = 0.0,
        tiers: PageTiers | None = None,
        rows: MediaRows | None = None,
        speculator: Speculates | None = None,
        max_rows: int = 0,
        answers_apart: bool = False,
    ) -> None:
        self.pages = pages
        self.speculator = speculator
        self.waiting: WaitingQueue[Sequence] = WaitingQueue()
        self.running: list[Sequence] = []
        self.preemptions = 0
        self._residency = Residency(pages, page_tokens=page_tokens, tiers=tiers, answers_apart=answers_apart)
        self._max_context = min(max_context, pages.num_pages * page_tokens)
        self._max_running = max_running
        self._limit = max_running
        self._max_waiting = max_waiting
        self._max_rows = max_rows
        self._pacer = pacer
        self._rows: MediaRows = rows or NoMedia()
        self._chunks = Chunks(self._rows, pacer.max_step_tokens)
        self._now = now
        self._ageing_s = ageing_s
        self._next_ageing = now() if ageing_s else float("inf")
        self._tiers: PageTiers = tiers or NoTiers()
        self._arrivals = 0
        self._paused = False
        self._unpriced: dict[tuple[int, str], tuple[Sequence, float]] = {}

    def __repr__(self) -> str:
        return f"Scheduler(running={len(self.running)}, waiting={len(self.waiting)}, {self.pages!r})"

    @property
    def unfilled(self) -> float:
        """Room that running sequences hold behind their last token, in pages; what is promised to a prompt counts as filled."""
        return sum(self._residency.unfilled(sequence) for sequence in self.running)

    # --- requests come and go --------------------------------------------------------------------------------------------

    def add(self, request: GenerateRequest) -> Sequence:
        """Queue a request.

        Raises:
            InvalidRequest: Empty prompt, id already in flight, or nothing left to generate.
            ContextLengthExceeded: It can never fit.
            QueueFull: As many of its class and of more urgent ones wait as may, those for whom a place in the batch is free not
                counted: that many answers can always be asked of an idle engine at once.
        """
        self._check(request)
        before = sum(1 for s in (*self.running, *self.waiting) if s.rank <= request.priority)
        if before >= self._max_running + self._max_waiting:
            raise QueueFull(
                f"{self._max_waiting} answers may wait beside {self._max_running} in the making, which is this service's "
                "limit: try again later.",
                retry_after_s=self._estimate_wait(),
            )
        sequence = Sequence.of(request, arrival=self._arrivals, now=self._now())
        self._arrivals += 1
        self.waiting.push(sequence, lead=self._pacer.tokens_in(request.lead_s) or 0.0)
        self._tiers.prefetch(self._residency.prefix(sequence))
        return sequence

    def remove(self, sequence: Sequence) -> None:
        """Take a finished, cancelled or failed sequence out and free its pages."""
        if sequence in self.running:
            self.running.remove(sequence)
        else:
            self.waiting.remove(sequence)
        self._residency.release(sequence)

    def limit(self, max_running: int) -> None:
        """Admit nobody while so many run, one at least and no more than the scheduler was made for. Those that run go on."""
        self._limit = max(1, min(max_running, self._max_running))

    # --- one step --------------------------------------------------------------------------------------------------------

    def schedule(self) -> StepPlan:
        """Decide the next step and reserve its pages. Sequences in `expired` have left already."""
        now = self._now()
        plan = StepPlan(expired=self._expire(now))
        if self.waiting:
            self._age(now)
            self._admit_realtime(now, plan)
        self._schedule_decodes(plan)
        if self.waiting or plan.decoding < len(self.running):
            self._schedule_prompts(now, plan)
        self._schedule_guesses(plan)
        return plan

    def repeat(self, work: Seq[Work]) -> list[Work] | None:
        """The step after `work`, decodes that have been committed and whose tokens are not known yet; its pages are reserved.

        None unless `schedule` would, whatever those tokens are, decode these sequences and nothing else; those that turn out
        to have ended apart. Nothing has changed then.
        """
        sequences = [item.sequence for item in work]
        if sequences != self.running or self._changes(self._now()):
            return None
        if any(s.generated + 1 >= s.request.sampling.max_tokens for s in sequences):
            return None
        if sum(self._residency.missing(s, ahead=1) for s in sequences) > self.pages.available:
            return None
        for sequence in sequences:
            self._residency.grow(sequence, ahead=1)
        return [Work(s, s.computed, 1, sample=True) for s in sequences]

    def commit(self, work: Work, accepted: Seq[int] = ()) -> None:
        """Record that `work` has been computed: its tokens are in the cache, full pages get their names.

        `accepted` are those of its guesses that were right, which become tokens of the sequence; nothing is left of the others.
        """
        sequence = work.sequence
        sequence.tokens += accepted
        self._residency.settle(sequence, work.start + work.count - len(work.proposed) + len(accepted))
        if work.proposed:
            self._residency.trim(sequence)
        if work.sample:
            self.waiting.charge(sequence, OUTPUT_WEIGHT * (1 + len(accepted)))

    def charge_encoder(self, sequence: Sequence, seconds: float) -> None:
        """Count an encoder's time for a sequence's key: the prompt tokens that could have been computed in it.

        Before the first prompt nobody knows how many those are: what comes before it is counted then.
        """
        account = sequence.rank, sequence.key
        _, before = self._unpriced.get(account, (sequence, 0.0))
        self._unpriced[account] = sequence, before + seconds
        tokens = self._pacer.tokens_in(1.0)
        if tokens is None:
            return
        for one, took in self._unpriced.values():
            self.waiting.charge(one, PROMPT_WEIGHT * tokens * took)
        self._unpriced.clear()

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

    def _expire(self, now: float) -> list[Sequence]:
        late = [s for s in (*self.running, *self.waiting) if s.deadline_at is not None and s.deadline_at <= now]
        for sequence in late:
            self.remove(sequence)
        return late

    def _changes(self, now: float) -> bool:
        """Whether a step that begins now might do anything else than go on with those that run."""
        if any(s.deadline_at is not None and s.deadline_at <= now for s in (*self.running, *self.waiting)):
            return True
        if self.speculator is not None and not self.speculator.resting:
            return True
        if not self.waiting:
            return False
        first = self.waiting.first(set())
        more_urgent = first is not None and first.rank < self.running[-1].rank
        return len(self.running) < self._limit or more_urgent or now >= self._next_ageing

    def _age(self, now: float) -> None:
        """Promote what has waited for `ageing_s` since it came or was promoted; a promotion lasts."""
        if now < self._next_ageing:
            return
        self._next_ageing = now + self._ageing_s / _AGEING_LOOKS
        for sequence in list(self.waiting):
            steps = 1 + sequence.request.priority - sequence.rank
            if sequence.rank > Priority.INTERACTIVE and sequence.waited(now) >= steps * self._ageing_s:
                self.waiting.remove(sequence)
                sequence.rank -= 1
                self.waiting.push(sequence)

    def _admit_realtime(self, now: float, plan: StepPlan) -> None:
        held: set[Sequence] = set()
        while (sequence := self.waiting.first(held)) is not None and sequence.rank == Priority.REALTIME:
            if self._held_back(sequence, now):
                held.add(sequence)
            elif not self._admit(sequence, now, plan):
                return

    def _schedule_decodes(self, plan: StepPlan) -> None:
        urgent = any(s.rank == Priority.REALTIME and not s.decoding for s in self.running)
        # The most urgent class that sits out; interactive streams never sit out twice in a row.
        self._paused = urgent and not self._paused
        out = Priority.INTERACTIVE if self._paused else Priority.BACKGROUND
        for sequence in list(self.running):
            if not sequence.decoding or (urgent and sequence.rank >= out):
                continue
            if sequence in self.running and self._reserve(sequence, plan):
                plan.decode(sequence)

    def _schedule_prompts(self, now: float, plan: StepPlan) -> None:
        prompts = sorted((s for s in self.running if not s.decoding), key=self.waiting.turn)
        held: set[Sequence] = set()
        candidate = self._next_waiting(held, now)
        if prompts and prompts[0].rank == Priority.REALTIME:  # its step is not made longer for the sake of others
            prompts, candidate = [s for s in prompts if s.rank == Priority.REALTIME], None
        pace = self._pace(plan, prompts[0] if prompts else candidate)
        budget = pace.budget
        while budget > 0 and (prompts or candidate is not None):
            if candidate is None or (prompts and self.waiting.turn(prompts[0]) <= self.waiting.turn(candidate)):
                budget = self._prefill(plan, prompts.pop(0), budget, pace)
            elif self._admit(candidate, now, plan):
                prompts = [candidate, *(s for s in prompts if s in self.running)]
                budget = self._prefill(plan, prompts.pop(0), budget, pace)
                candidate = self._next_waiting(held, now)
            else:
                candidate = None  # nobody overtakes who waits for room
        if plan.prefilling:  # an encoder and the prompts beside it share the time
            plan.media.seconds = min(plan.media.seconds, self._pacer.idle_step_s)

    def _schedule_guesses(self, plan: StepPlan) -> None:
        """Only in steps that decode alone, and while nobody is between two chunks of a prompt or about to be admitted."""
        if self.speculator is None or not plan.decoding:
            return
        prompts = plan.prefilling or plan.media.encode is not None or plan.decoding < len(self.running)
        if prompts or (self.waiting and len(self.running) < self._limit):
            self.speculator.passed()
            return
        sequences = [work.sequence for work in plan.work]
        rooms = [one.request.sampling.max_tokens - one.generated - 1 for one in sequences]
        guesses = self.speculator.propose(sequences, rooms, max(0, self._max_rows - len(sequences)))
        for place, proposed in enumerate(guesses):
            if proposed and self._residency.grow(sequences[place], ahead=len(proposed)):
                plan.propose(place, proposed)

    def _next_waiting(self, held: set[Sequence], now: float) -> Sequence | None:
        """Whose turn it is, but for those that could not run yet (`_held_back`); they are added to `held`."""
        while (sequence := self.waiting.first(held)) is not None and self._held_back(sequence, now):
            held.add(sequence)
        return sequence

    def _pace(self, plan: StepPlan, first: Sequence | None) -> Pace:
        """For the prompts of this step, `first` being the one whose turn it is. Only streams as urgent as that are protected."""
        if first is None:
            return Pace()
        paced = any(work.sequence.rank <= first.rank for work in plan.work)
        return Pace(
            budget=self._pacer.budget(plan.decoding, start=first.computed, paced=paced),
            idle=plan.decoding == 0 or not paced,
            patient=self._pacer.patient(plan.decoding, paced=paced),
            encode_s=self._pacer.encode_s(plan.decoding, paced=paced, part_s=self._rows.part_s),
        )

    def _prefill(self, plan: StepPlan, sequence: Sequence, budget: int, pace: Pace) -> int:
        """Add what the budget allows of a sequence's prompt; returns what is left of the budget."""
        first = plan.load.tokens == 0
        chunk = self._chunks.next(sequence, budget, pace, plan.media, self.running, first=first)
        if chunk.count:
            plan.prefill(sequence, chunk.count)
        return 0 if chunk.wait else max(0, budget - chunk.count)

    # --- places ----------------------------------------------------------------------------------------------------------

    def _admit(self, sequence: Sequence, now: float, plan: StepPlan) -> bool:
        """Give a waiting sequence a place in the batch and its pages, if need be those of less urgent ones."""
        if not self._place(sequence) and not self._take_place(sequence, plan):
            return False
        self.waiting.remove(sequence)
        sequence.waited_s = sequence.waited(now)
        insort(self.running, sequence, key=lambda running: running.order)
        if sequence.admitted_at is None:
            sequence.admitted_at = now
            self.waiting.charge(sequence, PROMPT_WEIGHT * sequence.remaining)
        return True

    def _place(self, sequence: Sequence) -> bool:
        # One page of headroom for each running sequence: admitting into the last page would only preempt somebody at once.
        return len(self.running) < self._limit and self._residency.place(sequence, spare=len(self.running))

    def _take_place(self, sequence: Sequence, plan: StepPlan) -> bool:
        """Preempt as few sequences of less urgent classes as needed, least urgent, latest first; none if all would not do."""
        victims = [s for s in reversed(self.running) if s.rank > sequence.rank]
        spare = len(self.running) - len(victims)
        if not victims or spare >= self._limit:
            return False
        room = self.pages.available + self._residency.freed_by(victims)
        if room < self._residency.needed(sequence) + spare:
            return False
        for victim in victims:
            self._preempt(victim, plan)
            if self._place(sequence):
                return True
        return False

    def _reserve(self, sequence: Sequence, plan: StepPlan) -> bool:
        """A page for the next token of a running sequence, preempting others if need be; False if it was preempted itself."""
        while not self._residency.grow(sequence):
            victim = self.running[-1]
            self._preempt(victim, plan)
            if victim is sequence:
                return False
        return True

    def _preempt(self, victim: Sequence, plan: StepPlan) -> None:
        plan.drop(victim)
        self.running.remove(victim)
        self._residency.suspend(victim, self._pacer.recompute_s(victim.computed))
        victim.preemptions += 1
        self.preemptions += 1
        victim.queued_at = self._now()
        self.waiting.push(victim)

    def _held_back(self, sequence: Sequence, now: float) -> bool:
        """Whether a waiting sequence's grammar is being compiled, or a lower tier brings its pages, for `HOLD_S` at most."""
        if sequence.grammar is not None and not sequence.grammar.done():
            return True
        if sequence.hold_until is None:
            sequence.hold_until = now + HOLD_S
        return now < sequence.hold_until and self._tiers.pending(self._residency.prefix(sequence))

    def _estimate_wait(self) -> float:
        """Seconds until a place in the queue is likely free: a guess from the oldest running request's age, 1 to 60."""
        if not self.running:
            return 1.0
        oldest = min(sequence.added_at for sequence in self.running)
        return min(60.0, max(1.0, (self._now() - oldest) / 2))
