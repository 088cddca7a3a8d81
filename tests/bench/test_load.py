"""Open and closed loops, and what their samples amount to."""

from __future__ import annotations

import asyncio
import itertools
import statistics
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgewise.bench.load import Limits, Run, closed_loop, open_loop, poisson_arrivals
from edgewise.bench.report import percentile, summarize
from edgewise.bench.request import Sample
from edgewise.bench.work import Work


def works() -> Iterator[Work]:
    return (Work(prompt=str(number), answer_tokens=1) for number in itertools.count())


def test_arrivals_are_those_of_a_poisson_process() -> None:
    times = list(itertools.islice(poisson_arrivals(20.0, 3), 20_000))
    assert times == list(itertools.islice(poisson_arrivals(20.0, 3), 20_000))
    gaps = [after - before for before, after in itertools.pairwise([0.0, *times])]
    assert min(gaps) > 0
    # Mean and standard deviation of an exponential distribution are equal; 20,000 draws give each within 3 %.
    assert statistics.mean(gaps) == pytest.approx(0.05, rel=0.03)
    assert statistics.stdev(gaps) == pytest.approx(0.05, rel=0.03)


async def test_the_open_loop_waits_for_nobody() -> None:
    all_sent = asyncio.Event()
    seen: list[str] = []

    async def ask(work: Work, sample: Sample) -> None:
        seen.append(str(work.prompt))
        if len(seen) == 50:
            all_sent.set()
        await all_sent.wait()  # the first answer comes when the last request has been sent

    run = Run()
    arrivals = [number / 1000 for number in range(50)]
    await open_loop(run, ask, works(), iter(arrivals), Limits(requests=50))
    assert seen == [str(number) for number in range(50)]
    assert sorted(sample.scheduled for sample in run.samples) == [run.began + due for due in arrivals]


async def test_latency_counts_from_when_a_request_was_due() -> None:
    async def ask(work: Work, sample: Sample) -> None:
        sample.sent = sample.scheduled + 5  # this program was held up
        sample.arrivals = [sample.scheduled + 6, sample.scheduled + 8]
        sample.ended = sample.scheduled + 9

    run = Run()
    await open_loop(run, ask, works(), iter([0.0]), Limits(requests=1))
    report = summarize(run)
    assert report["time_to_first_token_s"]["p50"] == pytest.approx(6)
    assert report["latency_s"]["p50"] == pytest.approx(9)
    assert report["between_chunks_s"]["p50"] == pytest.approx(2)
    assert report["late_s"]["max"] == pytest.approx(5)


async def test_the_open_loop_ends_with_the_duration() -> None:
    async def ask(work: Work, sample: Sample) -> None: ...

    run = Run()
    await open_loop(run, ask, works(), iter([0.0, 0.01, 0.02, 0.03, 9e9]), Limits(duration_s=0.025))
    assert len(run.samples) == 3


@pytest.mark.parametrize("concurrency", [1, 4])
async def test_the_closed_loop_keeps_so_many_in_flight(concurrency: int) -> None:
    running, most = 0, 0

    async def ask(work: Work, sample: Sample) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1

    run = Run()
    await closed_loop(run, ask, works(), concurrency, Limits(requests=30))
    assert most == concurrency
    assert len(run.samples) == run.started == 30


async def test_the_closed_loop_ends_with_the_duration() -> None:
    async def ask(work: Work, sample: Sample) -> None:
        await asyncio.sleep(0.002)

    run = Run()
    await closed_loop(run, ask, works(), 2, Limits(duration_s=0.02))
    assert run.samples


async def test_an_interrupted_run_keeps_its_samples() -> None:
    fourth = asyncio.Event()

    async def ask(work: Work, sample: Sample) -> None:
        if work.prompt == "3":
            fourth.set()
        if work.prompt != "0":
            await asyncio.Event().wait()

    run = Run()
    loop = asyncio.create_task(closed_loop(run, ask, works(), 3, Limits(requests=9)))
    await fourth.wait()
    loop.cancel()
    with pytest.raises(asyncio.CancelledError):
        await loop
    assert summarize(run)["requests"] == {"ended": 1, "good": 1, "failed": 0, "unfinished": 3, "errors": {}}


def sample(first: float, *gaps: float, tokens: int | None = None, error: str | None = None) -> Sample:
    arrivals = list(itertools.accumulate(gaps, initial=first))
    return Sample(
        scheduled=0.0,
        sent=0.0,
        arrivals=arrivals,
        ended=arrivals[-1],
        prompt_tokens=10,
        answer_tokens=tokens,
        error=error,
    )


def test_a_report_counts_tokens_by_usage_and_gaps_by_chunks() -> None:
    run = Run(
        samples=[sample(1, 2, 2, tokens=9), sample(3, 1, tokens=3), sample(99, error="503 busy")], began=0, ended=8
    )
    run.started = 3
    report = summarize(run)
    assert report["requests"] == {"ended": 3, "good": 2, "failed": 1, "unfinished": 0, "errors": {"503 busy": 1}}
    assert report["time_to_first_token_s"] == {"mean": 2, "p50": 2, "p95": 2.9, "p99": 2.98, "max": 3}
    assert report["between_chunks_s"]["p50"] == 2, "of 2, 2 and 1"
    assert report["time_per_output_token_s"]["max"] == 0.5, "4 s for 8 tokens, 1 s for 2"
    assert report["per_second"] == {"requests": 0.25, "answer_tokens": 1.5, "prompt_tokens": 2.5}
    assert report["tokens"]["per_piece"] == 2.4, "12 tokens in 5 chunks"


def test_without_usage_no_tokens_are_made_up() -> None:
    report = summarize(Run(samples=[sample(1, 2)], began=0, ended=4, started=1))
    assert report["tokens"]["answer"] is None
    assert report["per_second"] == {"requests": 0.25, "answer_tokens": None, "prompt_tokens": None}
    assert report["time_per_output_token_s"] is None
    assert report["between_chunks_s"]["p50"] == 2


def test_nothing_is_reported_of_nothing() -> None:
    report = summarize(Run())
    assert report["latency_s"] is None
    assert report["requests"]["ended"] == 0


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=40), st.floats(0, 100))
def test_percentiles_are_numpys(values: list[float], share: float) -> None:
    assert percentile(values, share) == pytest.approx(float(np.percentile(values, share)), abs=1e-6)
