"""Waiting for company: it pays where callers come back at once and batches have a fixed cost, and else hardly ever happens."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Sequence

import pytest

from edgewise.engine.encoders.engine import EncoderCore
from edgewise.engine.encoders.request import EncodeRequest, EncoderInfo
from edgewise.engine.encoders.window import Costs, Window
from edgewise.engine.ledger import Ledger

CARD = (0.73e-3, 0.06e-3)
"""Fixed cost and that of each, as of ViT-B/16 on a card; then a text on one core."""
CORE = (0.2e-3, 2.3e-3)
MOST = 16


def latency(
    costs: tuple[float, float],
    first: list[float],
    again: Callable[[float], float | None],
    *,
    window: bool,
    answers: int,
) -> float:
    """Mean seconds from question to answer of a simulated encoder; `again` says when a caller who is answered asks anew."""
    fixed, each = costs
    coming, waiting, now, total, done = sorted(first), list[float](), 0.0, 0.0, 0
    held = Window()
    while done < answers and (coming or waiting):
        while coming and coming[0] <= now:
            waiting.append(heapq.heappop(coming))
        if not waiting:
            now = coming[0]
            continue
        hold = held.hold(min(len(waiting), MOST), MOST, now) if window else 0.0
        if hold > 0:
            now = min(now + hold, coming[0]) if coming else now + hold
            continue
        batch, waiting = waiting[:MOST], waiting[MOST:]
        began, now = now, now + fixed + each * len(batch)
        held.computed(len(batch), began, now)
        for asked in batch:
            total, done = total + now - asked, done + 1
            if (anew := again(now)) is not None:
                heapq.heappush(coming, anew)
    return total / done


def callers(costs: tuple[float, float], count: int, think_s: float) -> float:
    """With the window, as a share of without it: callers who ask again after `think_s` on average."""
    found = []
    for window in (True, False):
        chance = random.Random(1)

        def again(now: float, chance: random.Random = chance) -> float:
            return now + chance.expovariate(1 / think_s)

        first = [chance.uniform(0, think_s) for _ in range(count)]
        found.append(latency(costs, first, again, window=window, answers=3000))
    return found[0] / found[1]


@pytest.mark.parametrize("count", [2, 4, 8])
def test_callers_who_come_back_at_once_are_computed_together(count: int) -> None:
    assert callers(CARD, count, 0.05e-3) < 0.9


@pytest.mark.parametrize("costs", [CARD, CORE])
@pytest.mark.parametrize("think_s", [0.05e-3, 3e-3, 0.1])
def test_a_lone_caller_never_waits(costs: tuple[float, float], think_s: float) -> None:
    held = Window()
    now = 0.0
    chance = random.Random(2)
    waits = 0.0
    for _ in range(500):
        while (hold := held.hold(1, MOST, now)) > 0:
            waits += hold
            now += hold
        held.computed(1, now, now + sum(costs))
        now += sum(costs) + chance.expovariate(1 / think_s)
    assert waits < 0.01 * 500 * sum(costs)


@pytest.mark.parametrize(("costs", "load"), [(CARD, 0.1), (CARD, 1.0), (CARD, 6.0), (CORE, 0.5)])
def test_callers_who_do_not_wait_for_answers_lose_little(costs: tuple[float, float], load: float) -> None:
    chance = random.Random(3)
    times, now = [], 0.0
    for _ in range(6000):
        now += chance.expovariate(load / sum(costs))
        times.append(now)
    shares = [latency(costs, list(times), lambda _: None, window=window, answers=6000) for window in (True, False)]
    assert shares[0] < 1.02 * shares[1]


def test_costs_are_told_apart() -> None:
    costs = Costs()
    for count in (1, 4, 2, 8, 1, 3):
        costs.add(count, 2.0 + 0.5 * count)
    assert costs.fit() == pytest.approx((2.0, 0.5))


def test_a_wait_is_bounded_by_the_fixed_cost() -> None:
    held = Window()
    for count in (1, 4, 2, 4):
        held.computed(count, 0.0, 2.0 + 0.5 * count)
    assert 0 < held.hold(1, MOST, 4.0) <= 1.0
    assert held.hold(1, MOST, 5.1) == 0.0
    assert held.hold(1, MOST, 50.0) == 0.0


class Clock:
    """A clock that computing and sleeping move, and an encoder whose batches have a fixed cost."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept = 0.0
        self.sizes: list[int] = []

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.slept += seconds

    def check(self, content: bytes, options: object) -> bytes:
        del options
        return content

    def compute(self, inputs: Sequence[bytes]) -> list[tuple[dict[str, int], bytes]]:
        self.now += 1.0 + 0.1 * len(inputs)
        self.sizes.append(len(inputs))
        return [({}, it) for it in inputs]


def test_an_engine_computes_callers_who_come_back_together() -> None:
    clock = Clock()
    info = EncoderInfo(model="m", digest="d", role="vision", numeric_class="c", device="cpu", pid=1, load_s=0.0)
    core = EncoderCore(
        info,
        clock,
        Ledger(1 << 30, lambda: 1 << 30),
        max_batch=16,
        max_waiting=16,
        now=lambda: clock.now,
        sleep=clock.sleep,
    )
    core.add(EncodeRequest(id="a0", content=b""))
    turns = {"a": 0, "b": -1}
    backs: dict[str, float] = {"b": 0.5}  # the second caller comes while the first is computed
    for _ in range(60_000):
        for who in [it for it, when in backs.items() if when <= clock.now]:
            del backs[who]
            turns[who] += 1
            core.add(EncodeRequest(id=f"{who}{turns[who]}", content=b""))
        if not core.has_work:
            clock.now += 0.001
            continue
        for chunk in core.step():
            backs[chunk.request_id[0]] = clock.now + 0.01
    assert clock.sizes[0] == 1
    assert clock.sizes[-10:] == [2] * 10
    assert 0 < clock.slept < 0.1 * clock.now
