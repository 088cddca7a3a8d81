"""A whole measurement: look at the server, warm it up, load it, sum up."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx

from edgewise.bench.load import Limits, Run, closed_loop, open_loop, poisson_arrivals
from edgewise.bench.probe import first_model, measure_words, warm_up
from edgewise.bench.report import summarize
from edgewise.bench.request import Sample, Target, ask
from edgewise.bench.work import Lengths, WordCost, Work, drawn_work, listed_work


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to measure.

    Attributes:
        rate: Requests a second on average (open loop), or None.
        concurrency: Requests in flight (closed loop), or None; exactly one of the two is given.
        limits: When to end.
        prompt: Tokens of a prompt.
        answer: Most tokens of an answer.
        source: A file with the work, instead of the lengths.
        seed: Of arrivals, lengths and prompts.
        warmup: Requests before the run that are not counted.
    """

    rate: float | None
    concurrency: int | None
    limits: Limits
    prompt: Lengths
    answer: Lengths
    source: Path | None = None
    seed: int = 0
    warmup: int = 1

    def describe(self) -> dict[str, Any]:
        """JSON-able form."""
        loop: dict[str, Any] = {"loop": "open", "rate": self.rate}
        if self.rate is None:
            loop = {"loop": "closed", "concurrency": self.concurrency}
        work = {"from": str(self.source)} if self.source else {"prompt_tokens": str(self.prompt)}
        return {**loop, **work, "answer_tokens": str(self.answer), "seed": self.seed}

    def works(self, cost: WordCost, seed: int) -> Iterator[Work]:
        if self.source is not None:
            return listed_work(self.source, self.answer, cost, seed)
        return drawn_work(self.prompt, self.answer, cost, seed)


async def measure(plan: Plan, target: Target, client: httpx.AsyncClient, run: Run) -> dict[str, Any]:
    """Runs the plan.

    Args:
        plan: What to measure.
        target: Where; its model may be "", which takes the first that the server lists.
        client: Without a limit of connections, or with one that is part of what is measured.
        run: Filled on the way, so that its samples survive an interruption.

    Returns:
        The document of `document`.

    Raises:
        EngineUnavailable, NotFound: The server does not answer at all. Failures during the run are figures, not errors.
        InvalidRequest: The file with the work is refused.
    """
    next(plan.works(WordCost(), plan.seed))  # a file is refused before anything is sent
    if not target.model:
        target = replace(target, model=await first_model(client, target.base_url))
    cost = await measure_words(client, target, plan.seed)
    works = plan.works(cost or WordCost(), plan.seed)
    await warm_up(client, target, list(itertools.islice(plan.works(cost or WordCost(), plan.seed + 1), plan.warmup)))

    async def one(work: Work, sample: Sample) -> None:
        await ask(client, target, work, sample)

    if plan.rate is not None:
        await open_loop(run, one, works, poisson_arrivals(plan.rate, plan.seed), plan.limits)
    else:
        await closed_loop(run, one, works, plan.concurrency or 1, plan.limits)
    return document(plan, target, run)


def document(plan: Plan, target: Target, run: Run, *, interrupted: bool = False) -> dict[str, Any]:
    """The result, JSON-able."""
    fields: Mapping[str, Any] = target.fields
    asked = {"model": target.model, "endpoint": target.endpoint, "fields": dict(fields)}
    return {**asked, **plan.describe(), "interrupted": interrupted, **summarize(run)}


def run_plan(plan: Plan, target: Target, run: Run, **client: Any) -> dict[str, Any]:
    """`measure` from a program without an event loop.

    Args:
        plan, target, run: As there.
        client: Arguments of `httpx.AsyncClient`, e.g. headers and timeout.
    """

    async def whole() -> dict[str, Any]:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        async with httpx.AsyncClient(limits=limits, **client) as opened:
            return await measure(plan, target, opened, run)

    return asyncio.run(whole())
