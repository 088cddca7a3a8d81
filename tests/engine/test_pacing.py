"""Budgets follow measured costs: played against machines whose costs are known."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from edgewise.engine.pacing import Pacer
from edgewise.engine.step_cost import PromptCost, PromptLoad

STREAMS = 8


@dataclass
class Machine:
    """Seconds of a step: decoding, and prompts as `step_cost` models them, with a little noise."""

    decode_s: float
    fixed_s: float = 0.0
    token_s: float = 0.0
    context_s: float = 0.0
    pair_s: float = 0.0
    noise: float = 0.03
    rng: random.Random = field(default_factory=lambda: random.Random(7))

    def seconds(self, decoding: int, load: PromptLoad) -> float:
        prompts = self.fixed_s + self.token_s * load.tokens + self.context_s * load.context + self.pair_s * load.pairs
        exact = (self.decode_s if decoding else 0.0) + (prompts if load.tokens else 0.0)
        return max(exact, 1e-6) * (1.0 + self.noise * self.rng.random())


CPU = Machine(decode_s=0.040, token_s=0.0005, pair_s=2e-8)
SMALL = Machine(decode_s=0.003, fixed_s=0.001, token_s=2e-5, context_s=4e-7, pair_s=4e-9)
GPU = Machine(decode_s=0.004, fixed_s=0.015, token_s=2.5e-5, pair_s=2e-10)
MACHINES = pytest.mark.parametrize("machine", [CPU, SMALL, GPU], ids=["cpu", "small model", "gpu"])


def prefill(pacer: Pacer, machine: Machine, tokens: int, *, decoding: int = STREAMS) -> Iterator[tuple[int, float]]:
    """Chunk and duration of each step until a prompt is computed."""
    start = 0
    while start < tokens:
        count = min(tokens - start, pacer.budget(decoding, start=start))
        load = PromptLoad().plus(start, count) if count else PromptLoad()
        seconds = machine.seconds(decoding, load)
        pacer.observe(decoding=decoding, load=load, seconds=seconds)
        start += count
        yield count, seconds


def warmed(machine: Machine) -> Pacer:
    pacer = Pacer(max_step_tokens=512)
    list(prefill(pacer, machine, 3000, decoding=0))
    for _ in range(50):
        pacer.observe(decoding=STREAMS, load=PromptLoad(), seconds=machine.seconds(STREAMS, PromptLoad()))
    return pacer


@MACHINES
def test_running_streams_keep_their_pace_beside_a_long_prompt(machine: Machine) -> None:
    steps = [seconds for _, seconds in prefill(warmed(machine), machine, 32_000)]
    alone = sorted(machine.seconds(STREAMS, PromptLoad()) for _ in range(1000))
    assert len(steps) > 100
    assert sorted(steps)[int(0.95 * len(steps))] <= 1.5 * alone[950]


@MACHINES
def test_a_fresh_engine_learns_it_within_one_prompt(machine: Machine) -> None:
    steps = [seconds for _, seconds in prefill(Pacer(max_step_tokens=512), machine, 32_000)]
    later = steps[len(steps) // 10 :]
    assert sorted(later)[int(0.95 * len(later))] <= 1.5 * 1.03 * machine.decode_s


def test_chunks_are_large_where_launching_them_costs_most() -> None:
    chunks = [count for count, _ in prefill(warmed(GPU), GPU, 32_000) if count]
    assert min(chunks[1:-1]) >= 256  # the first one tries what a small chunk costs
    chunks = [count for count, _ in prefill(warmed(CPU), CPU, 4_000) if count]
    assert max(chunks) <= 64


@pytest.mark.parametrize("decoding", [0, STREAMS])
def test_chunks_shrink_as_the_context_grows(decoding: int) -> None:
    machine = Machine(decode_s=0.004, fixed_s=0.002, token_s=4e-5, pair_s=3.5e-8)
    steps = [(c, s) for c, s in prefill(Pacer(max_step_tokens=512), machine, 32_000, decoding=decoding) if c]
    late = steps[len(steps) // 4 :]
    assert sorted(seconds for _, seconds in late)[int(0.9 * len(late))] <= 1.3 * (0.05 + machine.decode_s)
    assert late[-2][0] < late[0][0] < steps[3][0]


def test_prompts_take_a_fair_part_of_the_time() -> None:
    for machine in (CPU, SMALL, GPU):
        steps = list(prefill(warmed(machine), machine, 8_000))
        total = sum(seconds for _, seconds in steps)
        decoding = len(steps) * machine.decode_s
        assert total - decoding >= 0.2 * total


def test_nothing_is_known_at_first() -> None:
    pacer = Pacer(max_step_tokens=512)
    assert pacer.budget(0) == 64
    assert pacer.recompute_s(100) is None
    assert pacer.budget(4) == 0
    pacer.observe(decoding=4, load=PromptLoad(), seconds=0.04)
    assert pacer.budget(4) == 4
    assert pacer.budget(3) == 4
    assert pacer.budget(5) == 0


def test_an_idle_engines_steps_are_bounded_in_time_but_not_inefficient() -> None:
    quick, launching = warmed(CPU), warmed(GPU)
    assert 64 <= quick.budget(0) <= 110
    assert quick.budget(0, start=20_000) < quick.budget(0)
    assert launching.budget(0) >= 384
    slow = Pacer(max_step_tokens=512)
    list(prefill(slow, Machine(decode_s=0.5, fixed_s=0.4, token_s=0.05), 2000, decoding=0))
    assert 16 <= slow.budget(0) <= 32  # a chunk of 0.05 s would be nothing but fixed cost


def test_streams_that_are_less_urgent_are_not_waited_for() -> None:
    pacer = warmed(CPU)
    assert pacer.budget(STREAMS, paced=False) > pacer.budget(STREAMS)
    assert Pacer(max_step_tokens=512).budget(STREAMS, paced=False) == 64


def test_a_long_prefill_makes_room_for_measuring_again() -> None:
    chunks = [count for count, _ in prefill(warmed(CPU), CPU, 8000)]
    assert chunks.count(0) == len(chunks) // 65


def test_one_slow_step_does_not_raise_the_bound() -> None:
    pacer = warmed(CPU)
    before = pacer.budget(STREAMS)
    pacer.observe(decoding=STREAMS, load=PromptLoad(), seconds=30.0)
    assert pacer.budget(STREAMS) <= 1.3 * before


def test_costs_are_told_apart() -> None:
    cost = PromptCost()
    rng = random.Random(3)
    truth = Machine(decode_s=0.0, fixed_s=0.004, token_s=1e-4, context_s=3e-7, pair_s=5e-9, noise=0.0)
    for _ in range(400):
        load = PromptLoad().plus(rng.randrange(30_000), rng.randrange(4, 512))
        cost.observe(load, truth.seconds(0, load), truth.seconds(0, load), alone=True)
    for start, count in ((0, 8), (0, 512), (16_000, 64), (31_000, 512)):
        load = PromptLoad().plus(start, count)
        assert cost.seconds(load, alone=True) == pytest.approx(truth.seconds(0, load), rel=0.1)


def test_the_load_of_a_step_counts_pairs_exactly() -> None:
    load = PromptLoad().plus(3, 2).plus(0, 3)
    assert (load.tokens, load.context, load.pairs) == (5, 5 + 3, (4 + 5) + (1 + 2 + 3))
