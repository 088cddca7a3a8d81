"""Predictions that were stored before dispatch, against what came of them, on a steady link.

A real device and a real cloud on the tiny model, with 20 ms and 50 Mbit/s between them. Requests differ in prompt, length and
place (the policy is in the header). After those that it learns from, the error of the same number of further ones is read from
the stored receipts.
"""

from __future__ import annotations

import random
import statistics
from typing import Any

import httpx

from edgewise.bench.link import LinkShape
from tests.accept.line import Line, Verdict, main, progress
from tests.e2e.pair import Pair, paired

BAR = 0.25
STEADY = LinkShape(rtt_s=0.02, bits_per_s=50e6)
POLICIES = ("prefer-cloud", "prefer-local")
WORDS = ("pump", "valve", "line", "shift", "motor", "is", "warm", "at", "noon", "seven")


def ask(pair: Pair, rng: random.Random, number: int) -> str:
    """One request; its id."""
    prompt = " ".join(rng.choice(WORDS) for _ in range(rng.randrange(5, 60)))
    headers = {"x-edgewise-policy": POLICIES[number % len(POLICIES)]}
    answer = pair.complete(prompt, headers=headers, max_tokens=rng.randrange(20, 120), seed=number)
    return str(answer["edgewise"]["request_id"])


def receipts(pair: Pair, ids: list[str]) -> list[dict[str, Any]]:
    with httpx.Client(base_url=pair.device.url, timeout=60) as client:
        found = [client.get(f"/edgewise/v1/receipts/{id}") for id in ids]
    return [one.raise_for_status().json() for one in found]


def measure(count: int) -> Verdict:
    """`count` requests to learn from, then `count` that count."""
    rng = random.Random(7)
    with paired() as pair:
        pair.link.reshape(STEADY)
        for number in range(count):
            ask(pair, rng, number)
        progress(f"{count} requests to learn from")
        stored = receipts(pair, [ask(pair, rng, number) for number in range(count)])
    errors: dict[str, list[float]] = {}
    for one in stored:
        errors.setdefault(one["where"], []).append(one["error"])
    unpredicted = sum(one["predicted_ms"] is None for one in stored)
    misplaced = set(errors) != {"cloud", "local"}
    every = [error for group in errors.values() for error in group if error is not None]
    median = statistics.median(every) if every else 1.0
    correct = not unpredicted and not misplaced
    figure = f"median error {median:.1%} of {len(every)} requests; {unpredicted} without a prediction"
    return Verdict(
        figure=figure,
        passed=correct and median <= BAR,
        correct=correct,
        details={
            "median_by_place": {where: round(statistics.median(group), 4) for where, group in sorted(errors.items())},
            "pairs_ms": [(one["where"], one["predicted_ms"], one["real_ms"]) for one in stored],
        },
    )


LINE = Line(
    number=7,
    title="Latency predicted before dispatch against the real one, after 50 requests on a steady link, here and in the cloud",
    bar=f"median error <= {BAR:.0%}",
    count=50,
    small=10,
    measure=measure,
)

if __name__ == "__main__":
    main(LINE, "tests.accept.cloud_7")
