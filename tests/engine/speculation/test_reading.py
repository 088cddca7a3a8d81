"""A draft model reads prompts in a share of the steps' time. Time is simulated: what a token takes is a constant."""

from __future__ import annotations

import math
from collections.abc import Sequence as Seq
from typing import cast

import pytest

from edgewise.core.clock import FakeClock
from edgewise.engine.pages import PagePool
from edgewise.engine.runner import Runner
from edgewise.engine.scheduler import Work
from edgewise.engine.sequence import Sequence
from edgewise.engine.speculation.draft import DraftModel
from edgewise.engine.speculation.reading import LEAST, Reading
from edgewise.engine.speculation.speculator import Speculator
from edgewise.kernels.sample import Draw
from tests.fakes.scheduling import request

STEP_S = 0.01


class TimedRunner:
    """Stands for a draft model: takes its time, and always draws the same token."""

    def __init__(self, clock: FakeClock, token_s: float) -> None:
        self.clock, self.token_s = clock, token_s
        self.tokens = 0

    def run(self, work: Seq[Work]) -> list[list[Draw]]:
        for item in work:
            self.tokens += item.count
            self.clock.advance(self.token_s * item.count)
        return [[Draw(5)] if item.sample else [] for item in work]


@pytest.mark.parametrize("token_s", [0.002, 0.0003, 0.00001])
def test_reading_a_prompt_makes_no_answer_slower_than_guesses_may(token_s: float) -> None:
    steps = 400
    clock = FakeClock()
    runner = TimedRunner(clock, token_s)
    draft = DraftModel(
        cast(Runner, runner), PagePool(200), max_position=4096, page_tokens=16, chunk=128, now=clock.monotonic
    )
    speculator = Speculator(draft=draft, now=clock.monotonic)
    sequence = Sequence.of(request("a", list(range(1000, 1600)), 2000), arrival=0, now=0.0)
    guessed_at: int | None = None
    began = clock.monotonic()
    for step in range(steps):
        (guess,) = speculator.propose([sequence], [16], 16)
        if guess:
            guessed_at = step
            break
        clock.advance(STEP_S)
        speculator.observe(1, 0, STEP_S)
        sequence.tokens.append(2000 + step)
        spent = clock.monotonic() - began
        assert (
            spent <= 1.1 * STEP_S * (step + 1) + LEAST * token_s + 1e-9
        )  # the first tokens are read to learn what they take
    assert runner.tokens > 0
    if guessed_at is None:
        assert spent > 1.05 * STEP_S * steps  # it goes on reading
        assert token_s == 0.002
    elif token_s == 0.00001:
        assert guessed_at < 12


def test_a_step_measured_as_far_too_long_is_forgotten() -> None:
    reading = Reading(chunk=128)
    assert reading.tokens(0.001) == LEAST
    reading.done(LEAST, 10.0)  # another program had the processor
    assert reading.tokens(0.001) == 0
    assert reading.tokens(100.0) == 128
    reading.done(128, 0.128)
    assert reading.tokens(100.0) == 128
    reading.done(128, 0.128)
    assert reading.tokens(0.02) in (19, 20)
    assert reading.tokens(math.inf) == 128
