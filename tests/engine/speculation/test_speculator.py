"""Guesses are made where they pay, and only there. Steps are simulated: their cost is a formula, nothing is timed."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from edgewise.core.clock import FakeClock
from edgewise.engine.sequence import Sequence
from edgewise.engine.speculation.speculator import MOST, Speculator
from edgewise.engine.speculation.step_ratio import StepRatio
from tests.fakes.scheduling import request

STEP_S = 0.01


@dataclass
class World:
    """Sequences that repeat a cycle of so many tokens, or never do; a guessed token costs a share of a step."""

    row_cost: float
    cycles: list[int]
    noise: int = 0
    clock: FakeClock = field(default_factory=FakeClock)

    def __post_init__(self) -> None:
        self.speculator = Speculator(now=self.clock.monotonic)
        self.sequences = [
            Sequence.of(request(str(i), [1000 * i], 10_000), arrival=i, now=0.0) for i in range(len(self.cycles))
        ]
        self.written = 0
        self.spent = 0.0
        self.rows = 0

    def token(self, sequence: Sequence, place: int) -> int:
        cycle = self.cycles[sequence.arrival]
        if self.noise and place % self.noise == 0:
            return place
        return place % cycle if cycle else place

    def step(self) -> int:
        guesses = self.speculator.propose(self.sequences, [MOST] * len(self.sequences), 32)
        rows = sum(len(guess) for guess in guesses)
        seconds = STEP_S * (1.0 + self.row_cost * rows)
        self.speculator.observe(len(self.sequences), rows, seconds)
        self.spent += seconds
        self.rows += rows
        for sequence, guess in zip(self.sequences, guesses, strict=True):
            accepted = 0
            for token in guess:
                if token != self.token(sequence, len(sequence.tokens)):
                    break
                sequence.tokens.append(token)
                accepted += 1
            if guess:
                self.speculator.learn(sequence, len(guess), accepted)
            sequence.tokens.append(self.token(sequence, len(sequence.tokens)))
            self.written += accepted + 1
        return rows

    def rate(self, steps: int) -> float:
        """Tokens per step's time and sequence."""
        self.written, self.spent = 0, 0.0
        for _ in range(steps):
            self.step()
        return self.written / len(self.cycles) / (self.spent / STEP_S)


def test_what_repeats_is_written_several_times_as_fast() -> None:
    world = World(row_cost=0.1, cycles=[7])
    world.rate(50)
    assert world.rate(300) > 3.0


def test_what_never_repeats_costs_nothing() -> None:
    world = World(row_cost=0.1, cycles=[0])
    assert world.rate(500) == pytest.approx(1.0)
    assert world.rows == 0


def test_where_a_guess_costs_as_much_as_a_step_it_switches_itself_off() -> None:
    world = World(row_cost=1.0, cycles=[7])
    assert world.rate(500) > 0.9
    world.rows = 0
    assert world.rate(400) > 0.97  # it tries again now and then
    assert world.rows < 80


def test_guesses_that_are_mostly_wrong_are_not_computed() -> None:
    world = World(row_cost=0.4, cycles=[7], noise=4)  # every fourth token breaks the cycle
    assert world.rate(1000) > 0.97


def test_it_begins_again_when_it_pays_again() -> None:
    world = World(row_cost=1.0, cycles=[7])
    world.rate(200)
    world.row_cost = 0.05
    world.rate(700)
    assert world.rate(200) > 2.0


def test_nobody_is_made_slower_for_the_sake_of_others() -> None:
    alone = World(row_cost=0.3, cycles=[7])
    alone.rate(50)
    assert alone.rate(200) > 1.3
    beside = World(row_cost=0.3, cycles=[7, 0, 0, 0])
    beside.rate(100)
    for _ in range(200):
        rows = beside.step()
        assert rows == 0 or 1.0 + 0.3 * rows <= 1.31 or beside.speculator.ratios.steps < 130


def test_looking_takes_a_small_share_of_the_time_where_it_finds_nothing() -> None:
    world = World(row_cost=0.1, cycles=[0])
    looks = 0

    class Slow:
        def guess(self, tokens: object, most: int) -> None:
            nonlocal looks
            looks += 1
            world.clock.advance(STEP_S * 0.045)

    world.step()
    world.step()
    world.sequences[0].guesser.history = Slow()  # type: ignore[union-attr]
    for _ in range(100):
        world.step()
    assert looks == 20
    assert not Speculator(now=world.clock.monotonic).resting


def test_always_takes_every_guess_within_its_bounds() -> None:
    speculator = Speculator(always=True)
    sequences = [Sequence.of(request(str(i), [1, 2, 3] * 5, 100), arrival=i, now=0.0) for i in range(3)]
    assert [len(guess) for guess in speculator.propose(sequences, [9, 0, 100], 20)] == [9, 0, 11]
    assert [len(guess) for guess in speculator.propose(sequences, [9, 9, 100], 100)] == [9, 9, MOST]
    assert [len(guess) for guess in speculator.propose(sequences, [9, 9, 9], 0)] == [0, 0, 0]


def test_what_was_not_measured_costs_no_more_than_fewer_guesses_until_it_is() -> None:
    ratios = StepRatio()
    assert ratios.needs_plain(2)
    ratios.observe(2, 0, 1.0)
    assert not ratios.needs_plain(2)
    assert ratios.ratio(2, 8) == 1.0
    ratios.observe(2, 4, 1.5)
    assert (ratios.ratio(2, 3), ratios.ratio(2, 4), ratios.ratio(2, 8)) == (1.0, 1.5, 1.5)
    ratios.observe(2, 7, 2.5)
    assert (ratios.ratio(2, 8), ratios.ratio(2, 4), ratios.ratio(3, 8)) == (2.5, 1.5, 1.0)
    ratios.observe(2, 1, 1e6)  # another program had the processor
    assert ratios.ratio(2, 1) == 1.5


def test_a_step_without_guesses_is_due_now_and_then_and_old_measures_are_dropped() -> None:
    ratios = StepRatio()
    ratios.observe(1, 0, 1.0)
    for _ in range(32):
        assert not ratios.needs_plain(1)
        ratios.observe(1, 4, 1.4)
    assert ratios.needs_plain(1)
    for _ in range(501):
        ratios.observe(1, 0, 1.0)
    assert ratios.ratio(1, 4) == 1.0
