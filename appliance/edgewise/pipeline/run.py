"""Carry a task out: plan, submit every sequence, and hand out its text in order of arrival.

`start_run` tells the story; nothing is sent to a caller before it returns, so every refusal is a plain error.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from edgewise.core.errors import EngineFault, InvalidRequest
from edgewise.core.privacy import Privacy
from edgewise.engine.api import TokenStream
from edgewise.engine.request import GenerateRequest, RequestStats, TokenChunk
from edgewise.engine.speech import Speech
from edgewise.pipeline.hooks.hooks import Hooks, Passage
from edgewise.pipeline.plan import Demand, Plan, Planner
from edgewise.pipeline.prompt import EncodedInput, answer_budget, encode_input
from edgewise.pipeline.receipt_store import Outcome
from edgewise.pipeline.receipts import Pace, TextReceipt, Usage, generate_receipt, spoken_receipt
from edgewise.pipeline.run_base import RunBase, errand_of, raise_reported
from edgewise.pipeline.seeds import draw_seed, normalize_seed, sequence_seed
from edgewise.pipeline.structured.hold import hold
from edgewise.pipeline.task import Task
from edgewise.pipeline.text import TextAssembler, TextChunk
from edgewise.pipeline.tools.reading import CallReading, call_id


class RunObserver(Protocol):
    """Told about pace as it happens, for metrics. Seconds."""

    def first_token(self, seconds: float, /) -> None: ...

    def next_tokens(self, gaps: Sequence[float], /) -> None:
        """Further tokens came; seconds between each and the one before it, as its engine made them where it says so."""


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
    def account(self) -> RequestStats | None:
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
        raise_reported(chunk)
        return self.text.feed(chunk.tokens, chunk.logprobs, chunk.finish, chunk.sound)


class Run(RunBase[Task, _Sequence, TextChunk]):
    """A task under way.

    Attributes:
        prompts: Token ids of each prompt.
        seed: The request's seed, given or drawn.
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
        super().__init__(task, plan, clock=clock, passage=passage, on_end=on_end)
        self.prompts = prompts
        self.seed = seed
        self._observer = observer

    async def submit(self, requests: list[GenerateRequest], reading: CallReading | None = None) -> None:
        """Queue every sequence or none; `reading` tells how tool calls are read from their texts."""
        sequences = [partial(self._sequence, *one, reading) for one in enumerate(requests)]
        await self._start(sequences, sum(map(len, self.prompts)))

    async def _sequence(self, index: int, request: GenerateRequest, reading: CallReading | None) -> _Sequence:
        stream = await self.plan.decision("generate").engine.submit(request)
        assembler = TextAssembler(
            self.task.model.tokenizer,
            self.task.stop,
            sequence=index,
            reading=reading,
            make_id=partial(call_id, self.seed, request.prompt, index % self.task.n),
        )
        return _Sequence(index, stream, assembler)

    async def _take(self, part: _Sequence, chunk: TokenChunk) -> TextChunk | None:
        text = part.take(chunk)
        self._observe(part, chunk)
        return text if text is None or self._passage is None else await self._passage.pass_on(text)

    def usage(self) -> Usage:
        """Token counts so far."""
        return Usage(
            prompt_tokens=sum(len(prompt) for prompt in self.prompts),
            completion_tokens=sum(sequence.text.count for sequence in self._parts),
            cached_tokens=self._cached_tokens(),
        )

    def receipt(self) -> TextReceipt:
        pace = Pace(
            first_token_s=self.first_token_s,
            generation_s=0.0 if self._first_s is None else self._last_s - self._first_s,
            tokens=sum(sequence.text.count for sequence in self._parts),
        )
        stats = [sequence.account for sequence in self._parts]
        return TextReceipt(
            **self._common(),
            seed=self.seed,
            sampling=self.task.sampling.effective(self.task.model),
            stages=(
                *self.task.looks,
                generate_receipt(self.plan.decision("generate"), stats, self._cached_tokens(), pace),
            ),
            media=self.task.media,
            speech=spoken_receipt(stats[0]) if len(stats) == 1 else None,
            warnings=(*self.task.warnings, *self._warnings()),
        )

    def _warnings(self) -> list[str]:
        """What the engines and the end of the text have to say; the same of several answers once."""
        told = [text for one in self._parts if one.account is not None for text in one.account.warnings]
        return list(dict.fromkeys(told)) + [
            f"Answer {sequence.index} ends inside a character: its first {sequence.text.cut_bytes} bytes are not shown."
            for sequence in self._parts
            if sequence.text.cut_bytes
        ]

    def _cached_tokens(self) -> int | None:
        """Prompt tokens found in the prefix cache, by the first answer to each prompt; None if the engine did not say."""
        stats = [sequence.account for sequence in self._parts[:: self.task.n]]
        known = [one.cached_tokens for one in stats if one is not None]
        return sum(known) if known and len(known) == len(stats) else None

    def _observe(self, sequence: _Sequence, chunk: TokenChunk) -> None:
        count = len(chunk.tokens)
        if not count:
            return
        now = self._clock()
        if self._first_s is None:
            self._first_s = now
            if self._observer is not None:
                self._observer.first_token(now - self._started_s)
        if sequence.last_s is not None and self._observer is not None:
            self._observer.next_tokens(chunk.gaps or ((now - sequence.last_s) / count,) * count)
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
        InvalidRequest: A value out of range, or a spoken answer that hooks were to read.
        ContextLengthExceeded: The prompt does not fit.
        QueueFull, EngineUnavailable: The engine takes no more, or is not there.
    """
    task, passage = (task, None) if hooks is None else await hooks.admit(task)
    if passage is not None and task.voice is not None:
        raise InvalidRequest(
            "Answers are read by hooks here, which cannot hear what is said: ask for text alone, or have it spoken by "
            "/v1/audio/speech.",
            param="modalities",
        )
    work = await _work_out(task if passage is None else replace(task, whole=False))
    task, prompts = work.task, work.prompts
    plan = await planner.plan(errand_of(task), [_demand(task, work.requests)])
    run = Run(task, plan, prompts, work.seed, clock=clock, observer=observer, passage=passage, on_end=on_end)
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
    requests = _requests(task, encoded, seed, held.constraint, held.reading)
    return _Work(task, encoded.prompts, seed, requests, held.reading)


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
        media=bool(requests[0].media) or task.voice is not None,
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
    task: Task, encoded: EncodedInput, seed: int, constraint: str | None, reading: CallReading | None
) -> list[GenerateRequest]:
    """One engine request per answer: all answers to the first prompt, then to the second, ...

    An answer in which something may be found that ends it (a stop string, a tool call, by hooks) is told as it is made, though
    its caller gets it whole.
    """
    requests: list[GenerateRequest] = []
    whole = task.whole and not (task.stop or reading)
    drawing = task.sampling if constraint is None else replace(task.sampling, ignore_eos=False)
    for prompt in encoded.prompts:
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
                    media=encoded.media,
                    whole=whole,
                    speech=None if task.voice is None else Speech(voice=task.voice, seed=sequence_seed(seed, answer)),
                )
            )
    return requests
