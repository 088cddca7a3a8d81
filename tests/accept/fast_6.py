"""From end to end on this processor: a chat of 512 tokens as a stream, our service and llama.cpp's server asked by one client."""

from __future__ import annotations

import asyncio
import os
import random
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from edgewise.bench.request import Sample, Target, ask
from edgewise.bench.work import Work, make_text
from edgewise.models.tokenizer.load import load_tokenizer
from tests.accept.line import Line, NotRun, Verdict, main, progress
from tests.bench.cpu import PYTHON
from tests.bench.cpu_files import Kind, starter_file
from tests.bench.peer_sides import LLAMACPP, NotInstalled, ServerSide, edgewise_side, llamacpp_side, require
from tests.e2e.service import starter_model

BAR = 1.5
PROMPT = 512
ANSWER = 128
CONTEXT = 1024
WAYS: Sequence[tuple[str, Kind]] = (("int4", "Q4_0"), ("int8", "Q8_0"))


@dataclass(frozen=True, slots=True)
class Chat:
    """One streamed answer: seconds to its first token, and tokens a second after it."""

    first_s: float
    tokens_per_s: float


def chat(target: Target, prompt: str, tokens: int) -> Chat:
    """Asks once; raises RuntimeError if the answer is not whole."""
    sample = Sample(scheduled=time.perf_counter())

    async def once() -> None:
        async with httpx.AsyncClient(timeout=600, trust_env=False) as client:
            await ask(client, target, Work(prompt=prompt, answer_tokens=tokens), sample)

    asyncio.run(once())
    if sample.error is not None or sample.answer_tokens != tokens or sample.first_s is None:
        raise RuntimeError(f"{target.base_url}: {sample.error}, {sample.answer_tokens} tokens instead of {tokens}")
    return Chat(sample.first_s, (tokens - 1) / (sample.arrivals[-1] - sample.arrivals[0]))


@contextmanager
def both(quantize: str, kind: Kind, threads: int) -> Iterator[tuple[Target, Target]]:
    """Our service and llama.cpp's server, ready, with the same file."""
    fields = {"temperature": 0, "ignore_eos": True}
    with ExitStack() as stack:
        python = os.environ.get(PYTHON, sys.executable)
        try:
            require(LLAMACPP, python)  # before a file is made for it
            theirs = stack.enter_context(llamacpp_side(starter_file(kind), threads, 1, CONTEXT, python))
        except NotInstalled as error:
            raise NotRun(f"{error} {PYTHON} may name another interpreter.") from error
        flags = ["--quantize", quantize]
        ours = stack.enter_context(edgewise_side(threads, 1, flags, guesses=False, weights=starter_file(kind)))
        targets = []
        for side in (ours, theirs):
            assert isinstance(side, ServerSide)
            targets.append(Target(base_url=side.url, model=side.model, fields=fields, max_field="max_tokens"))
        yield targets[0], targets[1]


def ratios(quantize: str, kind: Kind, rounds: int, tokens: int) -> dict[str, Any]:
    """Medians over the rounds of the ratios within a round; above 1 ours is faster."""
    tokenizer, rng = load_tokenizer(starter_model()), random.Random(6)

    def prompt() -> str:
        return tokenizer.decode(list(tokenizer.encode(make_text(PROMPT, rng)))[: PROMPT - 32])  # 32 for the template

    first, rate, seen = [], [], []
    with both(quantize, kind, len(os.sched_getaffinity(0))) as (ours, theirs):
        for target in (ours, theirs):
            chat(target, prompt(), 2)
        for number in range(rounds):
            text = prompt()
            order = (ours, theirs) if number % 2 else (theirs, ours)
            answers = {target.base_url: chat(target, text, tokens) for target in order}
            mine, other = answers[ours.base_url], answers[theirs.base_url]
            first.append(other.first_s / mine.first_s)
            rate.append(mine.tokens_per_s / other.tokens_per_s)
            seen.append([mine, other])
            times = f"first token {mine.first_s:.3f} and {other.first_s:.3f} s"
            progress(f"{quantize}, {kind}: {times}, {mine.tokens_per_s:.1f} and {other.tokens_per_s:.1f} tokens/s")
    return {
        "first": round(statistics.median(first), 3),
        "rate": round(statistics.median(rate), 3),
        "answers": [[(one.first_s, one.tokens_per_s) for one in pair] for pair in seen],
    }


def measure(count: int) -> Verdict:
    """`count`: rounds. With one only the shorter way is taken, with short answers."""
    ways = WAYS if count > 1 else WAYS[:1]
    found = {quantize: ratios(quantize, kind, count, ANSWER if count > 1 else 8) for quantize, kind in ways}
    told = [f"{name}: first token {one['first']:.2f} x, tokens/s {one['rate']:.2f} x" for name, one in found.items()]
    passed = all(min(one["first"], one["rate"]) >= BAR for one in found.values())
    return Verdict(figure="; ".join(told), passed=passed, correct=True, details=found)


LINE = Line(
    number=6,
    title=f"Through /v1/chat/completions as a stream, beside llama.cpp's server: first token after {PROMPT} tokens, tokens/s",
    bar=f"both >= {BAR} x, with weights in 4 and in 8 bits",
    count=7,
    small=1,
    measure=measure,
)

if __name__ == "__main__":
    main(LINE, "tests.accept.fast_6")
