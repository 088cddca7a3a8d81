"""The step loop's body: schedule, run, deliver. Runs inside the engine process; see `engine.worker` for the loop itself."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import asdict, replace

from edgewise.core.errors import ConstraintFailed, EdgewiseError, InvalidRequest, UnsupportedField
from edgewise.core.log import get_logger
from edgewise.engine.adapters import Adapters
from edgewise.engine.admission import Admission
from edgewise.engine.ahead import AheadRunner, Flight
from edgewise.engine.api import CacheTier, EngineInfo, EngineStats, MemoryReport
from edgewise.engine.chunking import MediaKey, key_of
from edgewise.engine.devices.group import DeviceGroup
from edgewise.engine.handover import HandOver
from edgewise.engine.heartbeat import resident_bytes
from edgewise.engine.ledger import Ledger
from edgewise.engine.messages import PageOrder, PageReply
from edgewise.engine.notices import Notices, Notify
from edgewise.engine.pacing import Pacer
from edgewise.engine.request import FinishReason, GenerateRequest, TokenChunk, TokenLogprobs
from edgewise.engine.runner import Runner
from edgewise.engine.scheduler import Scheduler, StepPlan, Work
from edgewise.engine.senses import Senses, Unseen
from edgewise.engine.sequence import Sequence
from edgewise.engine.speculation.speculator import Speculator
from edgewise.engine.step_cost import PromptLoad
from edgewise.engine.tiering import NoTiers, PageTiers
from edgewise.engine.tiers.pages import TieredPages
from edgewise.kernels.sample import Draw
from edgewise.models.adapters.files import AdapterFiles
from edgewise.models.adapters.loading import Adapter
from edgewise.models.multimodal.protocol import StepMedia

log = get_logger(__name__)

_HELD_BACK_S = 0.001  # between two looks at requests that all wait for a lower cache tier or for their grammar


class Engine:
    """One model over one page pool: the `engine.core.EngineCore` of a real model. Not thread-safe: one loop calls it.

    Args:
        info: What this engine is, for callers.
        scheduler, runner, pacer, ledger: Its parts.
        tiers: Pages beyond the device; the same that the scheduler and its page pool have.
        notices: What the parts want operators to know.
        hand_over: Gives named pages away and takes some; None does neither.
        senses: Encodes media; None where the model takes none.
        adapters: Low-rank adapters of the model; None where the network takes none.
        speculator: Guesses at next tokens; the same that the scheduler has.
        recording_tokens: Placeholders of the one recording that every prompt begins with; 0 where prompts may do without.
        devices: The others that compute the model together with this process; None where it does so alone.
        now, wait: Monotonic seconds, and how to let some pass.
    """

    def __init__(
        self,
        info: EngineInfo,
        *,
        scheduler: Scheduler,
        runner: Runner,
        pacer: Pacer,
        ledger: Ledger,
        tiers: TieredPages | None = None,
        notices: Notices | None = None,
        hand_over: HandOver | None = None,
        senses: Senses | None = None,
        adapters: Adapters | None = None,
        speculator: Speculator | None = None,
        recording_tokens: int = 0,
        devices: DeviceGroup | None = None,
        now: Callable[[], float] = time.monotonic,
        wait: Callable[[float], None] = time.sleep,
    ) -> None:
        self.info = info
        self._scheduler = scheduler
        self._runner = runner
        self._pacer = pacer
        self._ledger = ledger
        self._tiers: PageTiers = tiers or NoTiers()
        self._tiered = tiers
        self._notices = notices or Notices()
        self._hand_over = hand_over
        self._senses = senses
        self._adapters = adapters
        self._speculator = speculator
        self._admission = Admission(
            info, recording_tokens=recording_tokens, most_whole=pacer.max_step_tokens, senses=senses
        )
        self._devices = devices
        self._writing_behind = False
        self._now = now
        self._wait = wait
        self._live: dict[str, Sequence] = {}
        self._flight: Flight | None = None
        self._outbox: list[TokenChunk] = []
        self._encoder_s = 0.0
        self._totals: Counter[str] = Counter()  # fields of `EngineStats` that only grow

    def __repr__(self) -> str:
        return f"Engine({self.info.model}, {self._scheduler!r})"

    # --- requests ---------------------------------------------------------------------------------------------------------

    def add(self, request: GenerateRequest) -> None:
        """Queue a request. Raises what `Admission.check` and `Scheduler.add` raise; nothing is kept then."""
        self._admission.check(request, self._live.values())
        request = request if self._senses is None else self._senses.bound(request)
        adapter = None if request.adapter is None else self._adapter(request.adapter)
        sequence = self._scheduler.add(request)
        sequence.adapter = adapter
        if request.constraint is not None:
            try:
                sequence.grammar = self._runner.constraints.open(request.id, request.constraint)
            except InvalidRequest:
                self._scheduler.remove(sequence)
                raise
        self._live[request.id] = sequence

    def _adapter(self, files: AdapterFiles) -> Adapter:
        if self._adapters is None:
            raise UnsupportedField(
                f"The engine of '{self.info.model}' takes no adapters: its kernels are '{self.info.kernels}', and those of "
                "a decoder on 'native' or 'reference' take them. Set engine.kernels to auto.",
                param="model",
            )
        used = {one.request.adapter.digest for one in self._live.values() if one.request.adapter is not None}
        return self._adapters.open(files, used)

    def cancel(self, request_id: str) -> None:
        """Free a request's pages now; its last chunk comes with the next step. Unknown ids have finished already."""
        sequence = self._live.get(request_id)
        if sequence is None:
            return
        self._outbox.append(self._finish(sequence, "cancelled"))
        self._count(aborted=1)

    def limit(self, max_running: int, pace: float) -> None:
        """See `engine.core.Limited`; `pace` is for pictures."""
        del pace
        self._scheduler.limit(max_running)

    # --- the loop's body --------------------------------------------------------------------------------------------------

    @property
    def has_work(self) -> bool:
        return bool(self._live or self._outbox or self._writing_behind)

    @property
    def busy(self) -> bool:
        """Whether any request is in work; `has_work` may be for pages that are written behind alone."""
        return bool(self._live)

    def step(self) -> list[TokenChunk]:
        """Schedule, run, deliver. Returns the chunks of this step; an empty list when there is nothing to do."""
        chunks, self._outbox = self._outbox, []
        if self._flight is None:
            chunks += self._begin()
        if self._flight is not None:
            chunks += self._land(self._flight)
        self._writing_behind = self._tiers.tick()
        return chunks

    def _begin(self) -> list[TokenChunk]:
        """Schedule a step and do it, or have the device begin it (`engine.ahead`)."""
        plan = self._scheduler.schedule()
        chunks = [self._expire(sequence) for sequence in plan.expired]
        if plan.media.encode is None and isinstance(self._runner, AheadRunner) and self._runner.queues(plan.work):
            self._flight = Flight(plan.work, self._runner.launch(plan.work), self._now())
            self._commit(plan.work)
        elif plan.work or plan.media.encode is not None:
            draws = self._run(plan, self._see(plan, chunks))
            chunks += self._encode(plan)
            chunks += [self._advance(work, draw) for work, draw in zip(plan.work, draws, strict=True) if draw]
        elif not chunks and self._live:
            self._wait(_HELD_BACK_S)  # every request waits for a lower cache tier or for its grammar
        return chunks

    def _land(self, flight: Flight) -> list[TokenChunk]:
        """Begin the step after `flight`, if that needs none of its tokens, and deliver those."""
        assert isinstance(self._runner, AheadRunner)
        work = self._scheduler.repeat(flight.work)
        following = None if work is None else (work, self._runner.follow(work))
        tokens, now = flight.landing.tokens(), self._now()
        awaited = [
            (item, token)
            for item, token in zip(flight.work, tokens, strict=True)
            if self._live.get(item.sequence.id) is item.sequence
        ]
        if awaited:  # else it may have lain there for as long as no request came
            self._pacer.observe(decoding=len(flight.work), load=PromptLoad(), seconds=now - flight.began)
            _share_out(flight.work, now - flight.began)
        chunks = [self._advance(item, [Draw(token, broken=token < 0)]) for item, token in awaited]
        self._flight = None
        if following is not None:
            self._flight = Flight(*following, now)
            self._commit(following[0])
        return chunks

    def _commit(self, work: Seq[Work]) -> None:
        """Record what the device has begun to compute: whatever comes after it there finds it done."""
        for item in work:
            if self._live.get(item.sequence.id) is item.sequence:
                self._scheduler.commit(item)
        self._count(steps=1)

    def _see(self, plan: StepPlan, chunks: list[TokenChunk]) -> StepMedia | None:
        """Rows of the media of a step. Whoever needs one that cannot be encoded again ends in `chunks` and leaves the plan."""
        if self._senses is None:
            return None
        while True:
            try:
                media = self._senses.rows(plan.work)
            except Unseen as lost:
                blind = self._in_need_of(lost.key)
                for one in blind:
                    plan.drop(one)
                chunks += [self._fail(one, lost.error.code, lost.error.message) for one in blind]
            else:
                for sequence, seconds in self._senses.late:
                    self._bill(sequence, seconds)
                self._senses.late.clear()
                return media

    def _run(self, plan: StepPlan, media: StepMedia | None) -> list[list[Draw]]:
        if not plan.work:
            return []
        began = self._now()
        draws = self._runner.run(plan.work, media)
        took = self._now() - began
        self._observe(plan, took)
        _share_out(plan.work, took)
        for work, drawn in zip(plan.work, draws, strict=True):
            self._scheduler.commit(work, [one.token for one in drawn[:-1]])
        self._count(steps=1, prompt_tokens=plan.prefilling)
        return draws

    def _observe(self, plan: StepPlan, seconds: float) -> None:
        """What a step costs is learned from steps without guesses, and what guesses cost beside that."""
        proposed = plan.proposed
        if proposed:
            self._pacer.speculated()
        else:
            self._pacer.observe(decoding=plan.decoding, load=plan.load, seconds=seconds)
        if self._speculator is not None and not plan.prefilling:
            self._speculator.observe(plan.decoding, proposed, seconds)

    def _encode(self, plan: StepPlan) -> list[TokenChunk]:
        """Work on a medium that a prompt has come to. Whoever needs one that its encoder refuses ends here."""
        if self._senses is None or plan.media.encode is None:
            return []
        try:
            took = self._senses.advance(plan.media)
            self._pacer.encoded(plan.decoding, took)
            if plan.media.payer is not None:
                self._bill(plan.media.payer, took)
        except EdgewiseError as error:
            blind = self._in_need_of(plan.media.encode[0])
            return [self._fail(one, error.code, error.message) for one in blind]
        return []

    def _in_need_of(self, key: MediaKey) -> list[Sequence]:
        """Whose prompts have not been computed beyond a medium."""
        return [
            one
            for one in self._live.values()
            if any(key_of(one, medium) == key and one.computed < medium.end for medium in one.spans.media)
        ]

    def _bill(self, sequence: Sequence, seconds: float) -> None:
        self._scheduler.charge_encoder(sequence, seconds)
        self._encoder_s += seconds

    def _advance(self, work: Work, draws: list[Draw]) -> TokenChunk:
        """Append a drawn token to its sequence and say so; those drawn before it were guessed and are there already."""
        sequence, last = work.sequence, draws[-1]
        if work.proposed:
            self._learn(work, len(draws) - 1)
        offset = sequence.generated - len(draws) + 1
        if last.broken or last.stuck:
            return self._broken(sequence, draws, offset)
        first = sequence.first_token_at is None
        if first:
            sequence.first_token_at = self._now()
            self._count(cached_tokens=sequence.cached_tokens or 0)
        sequence.tokens.append(last.token)
        self._count(generated_tokens=len(draws))
        chunk = TokenChunk(
            request_id=sequence.id,
            offset=offset,
            tokens=tuple(one.token for one in draws),
            logprobs=_logprobs(draws),
            stats=sequence.account(self._now()) if first else None,
        )
        finish = _finish_reason(sequence, last.token)
        if finish is None:
            return chunk
        frames = () if sequence.request.alignment is None else self._runner.alignment(sequence)
        return replace(chunk, finish=finish, stats=self._finish(sequence, finish).stats, frames=frames)

    def _learn(self, work: Work, accepted: int) -> None:
        """What became of a sequence's guesses. Those behind a token that ends the answer count as wrong."""
        proposed = len(work.proposed)
        work.sequence.proposed_tokens += proposed
        work.sequence.accepted_tokens += accepted
        self._count(proposed_tokens=proposed, accepted_tokens=accepted)
        if self._speculator is not None:
            self._speculator.learn(work.sequence, proposed, accepted)

    def _broken(self, sequence: Sequence, draws: list[Draw], offset: int) -> TokenChunk:
        """The end of an answer of which no further token can be drawn."""
        if draws[-1].broken:
            end = self._fail(sequence, "engine_error", "The model produced no finite logits for this request.")
        else:
            end = self._fail(sequence, ConstraintFailed.code, self._stuck(sequence))
        right = draws[:-1]
        self._count(generated_tokens=len(right))
        return replace(end, offset=offset, tokens=tuple(one.token for one in right), logprobs=_logprobs(right))

    # --- endings ----------------------------------------------------------------------------------------------------------

    def _finish(self, sequence: Sequence, reason: FinishReason) -> TokenChunk:
        self._scheduler.remove(sequence)
        return self._close(sequence, reason)

    def _fail(self, sequence: Sequence, code: str, message: str) -> TokenChunk:
        log.error("request_failed", request_id=sequence.id, code=code, reason=message)
        return replace(self._finish(sequence, "error"), error_code=code, error_message=message)

    def _stuck(self, sequence: Sequence) -> str:
        why = self._runner.constraints.problem(sequence.id)
        return f"The answer cannot go on inside the grammar asked for, after {sequence.generated} tokens: {why}."

    def _expire(self, sequence: Sequence) -> TokenChunk:
        """The scheduler has taken it out already."""
        waited = self._now() - sequence.added_at
        message = (
            f"The answer was not complete within its time limit: {waited:.3g} s have passed and {sequence.generated} tokens "
            "are made. Allow more time ('timeout', or the service's limits.request_timeout_s) or ask for fewer tokens."
        )
        return replace(self._close(sequence, "error"), error_code="deadline_exceeded", error_message=message)

    def _close(self, sequence: Sequence, reason: FinishReason) -> TokenChunk:
        del self._live[sequence.id]
        self._runner.constraints.close(sequence.id)
        if self._speculator is not None:
            self._speculator.ended(sequence)
        if self._senses is not None:
            self._senses.release(self._live.values())
        return TokenChunk(
            request_id=sequence.id,
            offset=sequence.generated,
            tokens=(),
            finish=reason,
            stats=sequence.account(self._now()),
        )

    # --- observation ------------------------------------------------------------------------------------------------------

    def _count(self, **more: int) -> None:
        for name, count in more.items():
            self._totals[name] += count

    def stats(self) -> EngineStats:
        pages = self._scheduler.pages
        spill = pages.spill.stats()
        return EngineStats(
            **self._totals,
            running=len(self._scheduler.running),
            waiting=len(self._scheduler.waiting),
            pages_total=pages.num_pages,
            pages_free=pages.free,
            pages_cached=pages.cached,
            pages_unfilled=self._scheduler.unfilled,
            preemptions=self._scheduler.preemptions,
            spill_bytes=spill.reserved_bytes,
            spill_limit_bytes=spill.limit_bytes,
            spilled_pages=spill.exported,
            unspilled_pages=spill.restored,
            adapters=0 if self._adapters is None else len(self._adapters),
            adapter_bytes=0 if self._adapters is None else self._adapters.nbytes,
            encoder_seconds=self._encoder_s,
            devices=self.info.devices,
            rss_bytes=resident_bytes() + (0 if self._devices is None else self._devices.resident_bytes()),
            **({} if self._tiered is None else asdict(self._tiered.stats())),
            **({} if self._senses is None else self._senses.stats()),
        )

    def listen(self, listener: Notify) -> None:
        self._notices.listen(listener)

    def guard(self, lost: Callable[[str], None]) -> None:
        """See `engine.core.Guarded`."""
        if self._devices is not None:
            self._devices.guard(lost)

    def clear_cache(self, tier: CacheTier | None) -> dict[str, int]:
        """Device pages that nobody uses go first: they would be copied into the tiers below. With them go the rows of media,
        which are no pages and not counted."""
        cleared = {"device": self._scheduler.pages.drop_cached()} if tier in (None, "device") else {}
        if self._tiered is not None and tier != "device":
            cleared |= self._tiered.clear(tier)
        if self._senses is not None and tier in (None, "device"):
            self._senses.cache.clear()
        return cleared

    def pages(self, order: PageOrder) -> PageReply:
        """See `engine.core.HoldsPages`."""
        if self._hand_over is None:
            return PageReply(id=order.id, count=0)
        return self._hand_over.carry_out(order)

    def memory(self) -> MemoryReport:
        return self._ledger.report()

    def close(self) -> None:
        """Forget all requests and write behind what the tiers still hold; the process is about to end."""
        self._live.clear()
        self._outbox.clear()
        self._runner.constraints.stop()
        if self._senses is not None:
            self._senses.close()
        self._tiers.close()
        if self._devices is not None:
            self._devices.close()


def _share_out(work: Seq[Work], seconds: float) -> None:
    """A step's time, among its sequences by their tokens."""
    each = seconds / sum(item.count for item in work)
    for item in work:
        item.sequence.device_s += each * item.count


def _finish_reason(sequence: Sequence, token: int) -> FinishReason | None:
    if token in sequence.request.sampling.stop_token_ids:
        return "stop"
    return "length" if sequence.generated >= sequence.request.sampling.max_tokens else None


def _logprobs(draws: list[Draw]) -> tuple[TokenLogprobs, ...] | None:
    if not draws or draws[0].logprob is None:
        return None
    return tuple(
        TokenLogprobs(token=one.token, logprob=one.logprob, top=one.top) for one in draws if one.logprob is not None
    )
