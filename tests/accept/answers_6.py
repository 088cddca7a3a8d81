"""Clients that leave at any moment (before, during and after the prefill) leak neither KV pages nor memory."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass

import httpx
import psutil

from scripts.service import DeviceService
from tests.accept.line import Line, Verdict, main, progress
from tests.e2e.client import Client
from tests.e2e.service import STARTER, running

AT_ONCE = 8
WARM_UP = 100
WARM_UP_IN_BRIEF = 4  # for fewer than 100 aborts, after which growth is not judged
MAX_GROWTH = 0.05
# Memory of the KV cache is touched as prompts come: one that the warm-up fills keeps its growth out of the figure.
SMALL_CACHE = {"EDGEWISE_ENGINE__KV_MEMORY_BYTES": "32 MiB"}
WORDS = ("harbour", "lies", "quiet", "grey", "sky", "while", "boats", "come", "home", "tide", "gulls", "cry", "over")


@dataclass(frozen=True, slots=True)
class Abort:
    """One request that is given up: after some streamed events, or after some seconds of waiting."""

    prompt: str
    after_events: int | None
    after_s: float


def draw(rng: random.Random) -> Abort:
    """A prompt of 5 to 400 words, and when to leave: a third at once or while queued, a third in prefill, a third later."""
    prompt = " ".join(rng.choice(WORDS) for _ in range(rng.randrange(5, 400)))
    kind = rng.randrange(3)
    if kind == 2:
        return Abort(prompt, rng.randrange(1, 12), 60.0)
    return Abort(prompt, None, rng.uniform(0, 0.01) if kind == 0 else rng.uniform(0.01, 0.5))


async def carry_out(http: httpx.AsyncClient, abort: Abort) -> None:
    """Start a streamed request and leave it."""
    body = {
        "model": STARTER,
        "messages": [{"role": "user", "content": abort.prompt}],
        "stream": True,
        "max_completion_tokens": 256,
        "ignore_eos": True,
    }

    async def read() -> None:
        async with http.stream("POST", "/v1/chat/completions", json=body) as response:
            seen = 0
            async for line in response.aiter_lines():
                seen += line.startswith("data:")
                if abort.after_events is not None and seen >= abort.after_events:
                    return

    try:
        await asyncio.wait_for(read(), abort.after_s)
    except asyncio.TimeoutError:
        return


async def abort_many(url: str, count: int, rng: random.Random) -> None:
    """`count` aborts, `AT_ONCE` at a time, each on a connection of its own."""
    todo = iter([draw(rng) for _ in range(count)])

    async def worker() -> None:
        for abort in todo:
            async with httpx.AsyncClient(base_url=url, timeout=120, trust_env=False) as http:
                await carry_out(http, abort)

    await asyncio.gather(*(worker() for _ in range(AT_ONCE)))


def held(client: Client) -> float:
    """KV pages that somebody holds once the engine is idle: neither free nor kept for their prefix, so there should be none."""
    gauges = client.wait_idle()
    return gauges["pages_total"] - gauges["pages_free"] - gauges["pages_cached"]


def memory(service: DeviceService) -> dict[str, int]:
    """Resident bytes of the service and of its engine."""
    return {
        "service": psutil.Process(service.pid).memory_info().rss,
        "engine": psutil.Process(service.engine_pid()).memory_info().rss,
    }


def measure(count: int) -> Verdict:
    """A warm-up lets the engine's memory reach its size; then the aborts are counted."""
    rng = random.Random(6)
    with running(environment=SMALL_CACHE) as service, Client(service.url, model=STARTER) as client:
        asyncio.run(abort_many(service.url, WARM_UP if count >= 100 else WARM_UP_IN_BRIEF, rng))
        pages_before, memory_before = held(client), memory(service)
        progress("warm; now the aborts")
        asyncio.run(abort_many(service.url, count, rng))
        pages_after, memory_after = held(client), memory(service)
        answer = client.chat("What is the capital of France?", temperature=0, max_completion_tokens=16)
    growth = {name: memory_after[name] / memory_before[name] - 1 for name in memory_after}
    leaked = pages_after - pages_before
    alive = bool(answer["choices"][0]["message"]["content"])
    figure = f"{count} aborts: {leaked:g} pages lost, memory " + ", ".join(f"{n} {g:+.1%}" for n, g in growth.items())
    right = pages_before == pages_after == 0 and alive
    flat = max(growth.values()) <= MAX_GROWTH
    details = {"pages_held": pages_after, "rss_before": memory_before, "rss_after": memory_after}
    told = None if count >= 100 else right  # so few aborts say nothing of growth
    return Verdict(figure=figure, passed=right and flat, correct=told, details=details)


LINE = Line(
    number=6,
    title="Random aborts before, during and after prefill: free pages as at the start, memory flat",
    bar=f"0 pages lost; growth of service and engine at most {MAX_GROWTH:.0%}",
    count=1000,
    small=24,
    measure=measure,
)

if __name__ == "__main__":
    main(LINE, "tests.accept.answers_6")
