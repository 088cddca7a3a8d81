"""Carry a task out: plan, submit every sequence, and hand out its text in order of arrival.

`start_run` tells the story; nothing is sent to a caller before it returns, so every refusal is a plain error.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from edgewise.core.errors import Cancelled, EdgewiseError, EngineFault, error_class
from edgewise.core.log import get_logger
from edgewise.core.privacy import Privacy
from edgewise.engine.api import TokenStream
from edgewise.engine.request import GenerateRequest, RequestStats, TokenChunk, link_of
from edgewise.pipeline.hooks.hooks import Hooks, Passage
from edgewise.pipeline.plan import Demand, Errand, Plan, Planner
from edgewise.pipeline.prompt import answer_budget, encode_input
from edgewise.pipeline.receipt_store import Outcome
from edgewise.pipeline.receipts import Pace, TextReceipt, Usage, costs_of, generate_receipt, show_plan
from edgewise.pipeline.seeds import draw_seed, normalize_seed, sequence_seed
from edgewise.pipeline.structured.hold import hold
from edgewise.pipeline.task import Task
from edgewise.pipeline.text import TextAssembler, TextChunk
from edgewise.pipeline.tools.reading import CallReading, call_id

log = get_logger(__name__)


class RunObserver(Protocol):
    """Told about pace as it happens, for metrics. Seconds."""

    def first_token(self, seconds: float, /) -> None: ...

    def next_tokens(self, count: int, seconds: float, /) -> None:
        """`count` tokens arrived `seconds` after the ones before."""


class _Sequence:
    """One answer in the making."""

    def __init__(self, index: int, stream: TokenStream, assembler: TextAssembler) -> None:
        self.index = index
        self.stream = stream
        self.text = assembler
        self.first_s: float | None = None
        self.last_s: float | None = None
        self._stats: RequestStats | None = None
        self._ended = False

    @property
    def stats(self) -> RequestStats | None:
        """The engine's last word; of an answer that a stop string ended, its first one and the time since then."""
        if self._stats is None or self._ended or self.first_s is None or self.last_s is None:
            return self._stats
        return replace(self._stats, decode_s=self.last_s - self.first_s)

    def take(self, chunk: TokenChunk) -> TextChunk | None:
        """Text of the engine's chunk; raises what the engine reports."""
        if chunk.offset != self.text.count:
            raise EngineFault(
                f"The engine continued at token {chunk.offset} where {self.text.count} were delivered: the answer is cut."
            )
        if chunk.stats is not None:
            self._stats, self._ended = chunk.stats, chunk.finish is not None
        if chunk.finish in ("error", "cancelled"):
            raise _engine_error(chunk)
        return self.text.feed(chunk.tokens, chunk.logprobs, chunk.finish)


class Run:
    """A task under way.

    Attributes:
        prompts: Token ids of each prompt.
        seed: The request's seed, given or drawn.
        done: Every sequence has finished; `usage` and `receipt` are complete.
    """

    def __init__(
        self,
        task: Task,
        plan: Plan,
        prompts: tuple[tuple[int, ...], ...],
        seed: int,
        *,
        clock: Callable[[], float] = time.monotonic,
        observer: RunObserver | None = None,
        passage: Passage | None = None,
        on_end: Callable[[Outcome], None] | None = None,
    ) -> None:
        self.task = task
        self.plan = plan
        self.prompts = prompts
        self.seed = seed
        self._clock = clock
        self._observer = observer
        self._passage = passage
        self._on_end = on_end
        self._fault = "cancelled"
        self._started_s = clock()
        self._first_s: float | None = None
        self._last_s = self._started_s
        self._sequences: list[_Sequence] = []
        self._pumps: list[asyncio.Task[None]] = []
        self._ready: deque[TextChunk | EdgewiseError] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._unfinished = 0

    def __repr__(self) -> str:
        return f"Run({self.task.id}, sequences={len(self._sequences)}, unfinished={self._unfinished})"

    @property
    def done(self) -> bool:
        return self._unfinished == 0

    @property
    def model_name(self) -> str:
        return self.task.model.name

    @property
    def first_token_s(self) -> float | None:
        """Seconds from the start to the first token of any sequence."""
        return None if self._first_s is None else self._first_s - self._started_s

    async def submit(self, requests: list[GenerateRequest], reading: CallReading | None = None) -> None:
        """Queue every sequence or none; `reading` tells how tool calls are read from their texts."""
        engine = self.plan.decision("generate").engine
        tokenizer = self.task.model.tokenizer
        try:
            for index, request in enumerate(requests):
                stream = await engine.submit(request)
                prompt, answer = request.prompt, index % self.task.n
                assembler = TextAssembler(
                    tokenizer,
                    self.task.stop,
                    sequence=index,
                    reading=reading,
                    make_id=partial(call_id, self.seed, prompt, answer),
                )
                self._sequences.append(_Sequence(index, stream, assembler))
        except BaseException as error:
            self._fault = error.code if isinstance(error, EdgewiseError) else self._fault
            await self.aclose()
            raise
        self._unfinished = len(self._sequences)
        self._pumps = [
            asyncio.create_task(self._pump(sequence), name=f"{self.task.id}/{sequence.index}")
            for sequence in self._sequences
        ]

    async def receive(self, timeout_s: float | None = None) -> TextChunk | None:
        """The next piece of any sequence; None when none came within `timeout_s`.

        Raises:
            EdgewiseError: The engine failed, or `fail` was called. The caller then closes the run.
        """
        if not self._ready and not await self._arrival(timeout_s):
            return None
        item = self._ready.popleft()
        if isinstance(item, EdgewiseError):
            self._fault = item.code
            raise item
        if item.finish is not None:
            self._unfinished -= 1
            if self.done:
                self._tell_end(None)
        return item

    async def chunks(self) -> AsyncIterator[TextChunk]:
        """All pieces up to the end; raises as `receive` does."""
        while not self.done:
            chunk = await self.receive()
            if chunk is not None:
                yield chunk

    def fail(self, error: EdgewiseError) -> None:
        """End the run with an error after what is already there; used when the service must stop."""
        for pump in self._pumps:
            pump.cancel()
        self._offer(error)

    async def aclose(self) -> None:
        """Cancel whatever still runs; the engine frees its pages. Safe to call at any time, and twice."""
        for pump in self._pumps:
            pump.cancel()
        await asyncio.gather(*self._pumps, return_exceptions=True)
        for sequence in self._sequences:  # a pump that was cancelled before its first step has not closed its stream
            await sequence.stream.aclose()
        self._tell_end(self._fault)
        if self._passage is not None:
            await self._passage.end(self._fault)

    def usage(self) -> Usage:
        """Token counts so far."""
        return Usage(
            prompt_tokens=sum(len(prompt) for prompt in self.prompts),
            completion_tokens=sum(sequence.text.count for sequence in self._sequences),
            cached_tokens=self._cached_tokens(),
        )

    def receipt(self) -> TextReceipt:
        pace = Pace(
            first_token_s=self.first_token_s,
            generation_s=0.0 if self._first_s is None else self._last_s - self._first_s,
            tokens=sum(sequence.text.count for sequence in self._sequences),
        )
        stats = [sequence.stats for sequence in self._sequences]
        return TextReceipt(
            request_id=self.task.id,
            model=self.task.model.name,
            digest=self.task.model.digest,
            priority=self.task.priority.label,
            privacy=self.task.privacy.label,
            seed=self.seed,
            sampling=self.task.sampling.effective(self.task.model),
            plan=show_plan(self.plan),
            total_ms=round((self._last_s - self._started_s) * 1000, 3),
            costs=costs_of(stats, [link_of(one.stream) for one in self._sequences], self.plan.watts),
            stages=(generate_receipt(self.plan.decision("generate"), stats, self._cached_tokens(), pace),),
            ignored=self.task.ignored,
            warnings=(*self.task.warnings, *self._warnings()),
        )

    def _tell_end(self, fault: str | None) -> None:
        """Once, when the last piece was handed out or the run was closed before that."""
        if self._on_end is None:
            return
        tell, self._on_end = self._on_end, None
        receipt = self.receipt()
        tell(
            Outcome(
                errand=errand_of(self.task),
                model=self.task.model.name,
                plan=self.plan,
                receipt=receipt.to_dict(),
                costs=receipt.costs,
                stats=tuple(sequence.stats for sequence in self._sequences),
                first_s=self.first_token_s,
                total_s=self._last_s - self._started_s,
                fault=fault,
            )
        )

    def _warnings(self) -> list[str]:
        """What the engines and the end of the text have to say; the same of several answers once."""
        told = [text for one in self._sequences if one.stats is not None for text in one.stats.warnings]
        return list(dict.fromkeys(told)) + [
            f"Answer {sequence.index} ends inside a character: its first {sequence.text.cut_bytes} bytes are not shown."
            for sequence in self._sequences
            if sequence.text.cut_bytes
        ]

    def _cached_tokens(self) -> int | None:
        """Prompt tokens found in the prefix cache, by the first answer to each prompt; None if the engine did not say."""
        stats = [sequence.stats for sequence in self._sequences[:: self.task.n]]
        known = [one.cached_tokens for one in stats if one is not None]
        return sum(known) if known and len(known) == len(stats) else None

    async def _arrival(self, timeout_s: float | None) -> bool:
        """Wait for something to hand out. Not by `asyncio.wait_for`: before Python 3.12 it can lose a cancellation."""
        loop = asyncio.get_running_loop()
        self._waiter = loop.create_future()
        timer = None if timeout_s is None else loop.call_later(timeout_s, self._rouse)
        try:
            await self._waiter
        finally:
            self._waiter = None
            if timer is not None:
                timer.cancel()
        return bool(self._ready)

    def _rouse(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _offer(self, item: TextChunk | EdgewiseError) -> None:
        self._ready.append(item)
        self._rouse()

    async def _pump(self, sequence: _Sequence) -> None:
        """Move one sequence from the engine to the caller; close its stream in the turn in which it ends."""
        try:
            async for chunk in sequence.stream:
                text = sequence.take(chunk)
                self._observe(sequence, len(chunk.tokens))
                if text is not None and self._passage is not None:
                    text = await self._passage.pass_on(text)
                if text is not None:
                    self._offer(text)
                    if text.finish is not None:
                        return
            self._offer(EngineFault("The engine's stream ended without saying why: the answer is cut."))
        except EdgewiseError as error:
            self._offer(error)
        except Exception as error:  # outermost frame of a task; the caller must hear of it
            log.exception("sequence_broke", request_id=self.task.id, sequence=sequence.index)
            self._offer(EngineFault(f"The answer broke off by an internal error ({type(error).__name__})."))
        finally:
            await sequence.stream.aclose()

    def _observe(self, sequence: _Sequence, count: int) -> None:
        if not count:
            return
        now = self._clock()
        if self._first_s is None:
            self._first_s = now
            if self._observer is not None:
                self._observer.first_token(now - self._started_s)
        if sequence.last_s is not None and self._observer is not None:
            self._observer.next_tokens(count, now - sequence.last_s)
        sequence.first_s = now if sequence.first_s is None else sequence.first_s
        sequence.last_s = self._last_s = now


async def start_run(
    task: Task,
    planner: Planner,
    *,
    clock: Callable[[], float] = time.monotonic,
    observer: RunObserver | None = None,
    hooks: Hooks | None = None,
    on_end: Callable[[Outcome], None] | None = None,
) -> Run:
    """Ask the hooks, tokenize, check, plan and queue a task.

    Raises:
        ContentRefused, HookFailed: A hook refuses the prompt, or failed.
        InvalidRequest: A value out of range; ContextLengthExceeded: the prompt does not fit.
        QueueFull, EngineUnavailable: The engine takes no more, or is not there.
    """
    task, passage = (task, None) if hooks is None else await hooks.admit(task)
    work = await _work_out(task)
    task, prompts = work.task, work.prompts
    plan = await planner.plan(errand_of(task), [_demand(task, work.requests)])
    run = Run(task, plan, prompts, work.seed, clock=clock, observer=observer, passage=passage, on_end=on_end)
    if passage is not None:
        await passage.begin(sum(map(len, prompts)), len(work.requests))
    await run.submit(work.requests, work.reading)
    return run


async def explain(task: Task, planner: Planner, missing_tokens: int = 0) -> Plan:
    """Where a task would run and why, without running it. Raises as `start_run`, besides the hooks, which see nothing.

    Args:
        missing_tokens: What the prompt will have besides, of something that is not there yet.
    """
    work = await _work_out(task)
    demand = _demand(task, work.requests)
    return await planner.explain(errand_of(task), [_longer(demand, missing_tokens, task) if missing_tokens else demand])


@dataclass(frozen=True, slots=True)
class _Work:
    """A task as the engines get it; `task` has the warnings of what was done to it."""

    task: Task
    prompts: tuple[tuple[int, ...], ...]
    seed: int
    requests: list[GenerateRequest]
    reading: CallReading | None


async def _work_out(task: Task) -> _Work:
    encoded = await encode_input(task)
    held = await hold(task)
    task = replace(task, warnings=(*task.warnings, *encoded.warnings, *held.warnings))
    seed = draw_seed() if task.sampling.seed is None else normalize_seed(task.sampling.seed)
    return _Work(task, encoded.prompts, seed, _requests(task, encoded.prompts, seed, held.constraint), held.reading)


def errand_of(task: Task) -> Errand:
    """What of a task matters to placement."""
    return Errand(
        id=task.id,
        key=task.key,
        priority=task.priority,
        privacy=task.privacy,
        deadline_s=task.deadline_s,
        policy=task.policy,
    )


def _demand(task: Task, requests: list[GenerateRequest]) -> Demand:
    """A text model's pipeline is one stage."""
    model = task.model
    return Demand(
        stage="generate",
        model=model.name,
        digest=model.digest,
        aliases=model.aliases,
        local=model.engine if model.here else None,
        context=model.context if model.here else None,
        prompt_tokens=max(len(request.prompt) for request in requests),
        answer_tokens=max(request.sampling.max_tokens for request in requests),
        answers=len(requests),
        upload_bytes=sum(4 * len(request.prompt) for request in requests),
        needs_tokens=any(one.constraint is not None or one.sampling.top_logprobs is not None for one in requests),
        allowed=task.allowed,
    )


def _longer(demand: Demand, tokens: int, task: Task) -> Demand:
    """The demand of a longer prompt; an answer without a limit of its own has what is left of the context."""
    prompt, answer = demand.prompt_tokens + tokens, demand.answer_tokens
    return replace(
        demand,
        prompt_tokens=prompt,
        answer_tokens=answer if task.sampling.max_tokens is not None else max(1, answer - tokens),
        upload_bytes=demand.upload_bytes + 4 * tokens * demand.answers,
    )


def _requests(
    task: Task, prompts: tuple[tuple[int, ...], ...], seed: int, constraint: str | None
) -> list[GenerateRequest]:
    """One engine request per answer: all answers to the first prompt, then to the second, ..."""
    requests: list[GenerateRequest] = []
    drawing = task.sampling if constraint is None else replace(task.sampling, ignore_eos=False)
    for prompt in prompts:
        budget = answer_budget(task, len(prompt))
        for answer in range(task.n):
            requests.append(
                GenerateRequest(
                    id=f"{task.id}/{len(requests)}",
                    prompt=prompt,
                    sampling=drawing.resolve(task.model, max_tokens=budget, seed=sequence_seed(seed, answer)),
                    salt=task.salt,
                    key=task.key,
                    priority=task.priority,
                    deadline_s=task.deadline_s,
                    constraint=constraint,
                    shared=task.privacy >= Privacy.SITE,
                )
            )
    return requests


def _engine_error(chunk: TokenChunk) -> EdgewiseError:
    """The error that the engine names, as its class in the tree; an unknown code is an engine fault."""
    message = chunk.error_message or f"The engine ended the request: {chunk.error_code or chunk.finish}."
    if chunk.finish == "cancelled":
        return Cancelled(message)
    return (error_class(chunk.error_code or "") or EngineFault)(message)
