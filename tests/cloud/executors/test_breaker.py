"""The circuit breaker against a model of what it promises."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from edgewise.cloud.executors.breaker import Breaker, BreakerRules, Permit
from edgewise.core.errors import EngineUnavailable

RULES = BreakerRules(failures=3, pause_s=2.0, longest_s=10.0)


class Machine(RuleBasedStateMachine):
    """Requests and probes in any order, each outcome told late, early or never."""

    @initialize()
    def begin(self) -> None:
        self.now = 100.0
        self.changes: list[tuple[str, str]] = []
        self.breaker = Breaker("upstream", RULES, now=lambda: self.now, on_change=self._changed)
        self.state = "closed"
        self.opened = 0.0
        self.row = 0  # failures in a row that count
        self.pause = RULES.pause_s  # of the next opening
        self.waits = 0.0  # pause of the present one
        self.flying: list[tuple[Permit, int]] = []  # with the era of the model
        self.era = 0

    def _changed(self, before: str, after: str, why: str) -> None:
        assert why
        self.changes.append((before, after))

    def move(self, state: str) -> None:
        self.state, self.era = state, self.era + 1

    @rule(seconds=st.floats(0.0, 12.0))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def ask(self) -> None:
        if self.state == "closed":
            self.flying.append((self.breaker.admit(), self.era))
            return
        with pytest.raises(EngineUnavailable) as refused:
            self.breaker.admit()
        assert (refused.value.retry_after_s or 0) >= 1.0

    @rule()
    def probe(self) -> None:
        permit = self.breaker.begin_probe()
        due = self.state == "open" and self.now - self.opened >= self.waits
        assert (permit is not None) == due
        if permit is not None:
            self.move("half_open")
            self.flying.append((permit, self.era))

    @rule(data=st.data(), outcome=st.sampled_from(["succeeded", "failed", "abandoned"]))
    def end(self, data: st.DataObject, outcome: str) -> None:
        if not self.flying:
            return
        permit, era = self.flying.pop(data.draw(st.integers(0, len(self.flying) - 1)))
        counts = era == self.era
        if outcome == "succeeded":
            self.breaker.succeeded(permit)
            if counts:
                self.row = 0
                if self.state == "half_open":
                    self.move("closed")
                else:
                    self.pause = RULES.pause_s
        elif outcome == "failed":
            self.breaker.failed(permit, "it broke")
            if counts:
                self.row += 1
                if self.state == "half_open" or self.row >= RULES.failures:
                    self.opened, self.waits = self.now, self.pause
                    self.pause = min(self.pause * 2, RULES.longest_s)
                    self.move("open")
        else:
            self.breaker.abandoned(permit)
            if counts and self.state == "half_open":
                self.opened, self.waits = self.now, 0.0
                self.move("open")

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "breaker"):
            return
        assert self.breaker.state == self.state
        assert (self.breaker.probe_in_s is None) == (self.state != "open")
        assert len(self.changes) == self.era

    @invariant()
    def never_waits_longer_than_the_longest(self) -> None:
        if hasattr(self, "breaker"):
            assert (self.breaker.probe_in_s or 0.0) <= RULES.longest_s


TestMachine = Machine.TestCase


def opened(now: list[float]) -> Breaker:
    breaker = Breaker("the upstream", RULES, now=lambda: now[0])
    for _ in range(RULES.failures):
        breaker.failed(breaker.admit(), "it answered 500")
    return breaker


def test_failures_in_a_row_open_it_and_the_refusal_says_why_and_when_to_come_again() -> None:
    breaker = opened([5.0])
    with pytest.raises(
        EngineUnavailable, match="the upstream has failed and is not asked for now: it answered 500"
    ) as no:
        breaker.admit()
    assert no.value.retryable
    assert no.value.retry_after_s == 2.0


def test_a_success_between_failures_keeps_it_closed() -> None:
    breaker = Breaker("upstream", RULES)
    for _ in range(10):
        breaker.failed(breaker.admit(), "it broke")
        breaker.failed(breaker.admit(), "it broke")
        breaker.succeeded(breaker.admit())
    assert breaker.state == "closed"


def test_while_the_probe_is_under_way_nobody_else_asks() -> None:
    now = [0.0]
    breaker = opened(now)
    now[0] = 2.0
    assert breaker.begin_probe() is not None
    assert breaker.begin_probe() is None
    with pytest.raises(EngineUnavailable):
        breaker.admit()


def test_each_probe_that_fails_doubles_the_pause_and_a_served_request_makes_it_short_again() -> None:
    now = [0.0]
    breaker = opened(now)
    pauses = []
    for _ in range(4):
        pause = breaker.probe_in_s
        assert pause is not None
        pauses.append(pause)
        now[0] += pause
        probe = breaker.begin_probe()
        assert probe is not None
        breaker.failed(probe, "it broke again")
    assert pauses == [2.0, 4.0, 8.0, 10.0]
    now[0] += 10.0
    probe = breaker.begin_probe()
    assert probe is not None
    breaker.succeeded(probe)
    breaker.succeeded(breaker.admit())
    for _ in range(RULES.failures):
        breaker.failed(breaker.admit(), "it broke")
    assert breaker.probe_in_s == 2.0


def test_an_outcome_from_before_the_change_counts_no_more() -> None:
    now = [0.0]
    breaker = Breaker("upstream", RULES, now=lambda: now[0])
    late = breaker.admit()
    for _ in range(RULES.failures):
        breaker.failed(breaker.admit(), "it broke")
    breaker.succeeded(late)
    assert breaker.state == "open"
