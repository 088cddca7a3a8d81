"""Decisions of rollouts: single cases, and whatever order things happen in."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from edgewise.cloud.fleet.rollouts.machine import (
    SETTLED,
    Facts,
    Member,
    Outcome,
    assign,
    at_deadline,
    judge,
    next_move,
    order,
    verdict,
)
from edgewise.cloud.fleet.rollouts.plan import Behaviour, RolloutPlan, Stage, read_plan
from edgewise.core.errors import InvalidRequest
from edgewise.wire.fleet import TrialResult

PLAN = RolloutPlan()
STAGE = Stage(percent=10, bake_s=60)
GOOD = {"prompts": 8, "agreement": 0.95, "tokens_per_s": 50.0, "baseline_tokens_per_s": 55.0}
HERE = Facts(present=True, healthy=True)


def answered(tokens: int) -> dict[str, Any]:
    return {"usage": {"completion_tokens": tokens}}


def move(member: Member, facts: Facts, *, plan: RolloutPlan = PLAN, trial: bool = True, now: float = 0.0) -> Any:
    return next_move(member, facts, plan, STAGE, trial=trial, now=now)


def member(state: Any, gen: int = 0, at: float = 0.0) -> Member:
    return Member(uid="a", stage=0, state=state, gen=gen, at=at)


def test_a_good_model_goes_all_the_way() -> None:
    assert (step := move(member("waiting"), HERE)).do == "try"
    tried = replace(HERE, trial=Outcome(state="succeeded", result=GOOD))
    assert (step := move(member(step.state), tried)).do == "change"
    assert step.checks["agreement"] == 0.95
    desired = replace(tried, gen=7, ours=True)
    assert move(member("changing", gen=7), desired) is None
    assert (step := move(member("changing", gen=7), replace(desired, seen=7, applied=7))).do == "probe"
    done = replace(desired, applied=7, probe=Outcome(state="succeeded", result=answered(4)))
    assert (step := move(member(step.state, gen=7), done)).state == "baking"
    assert move(member("baking", gen=7, at=100.0), done, now=159.0) is None
    assert move(member("baking", gen=7, at=100.0), done, now=160.0).state == "succeeded"


@pytest.mark.parametrize(
    ("scores", "says"),
    [
        ({"agreement": 0.02}, "agrees"),
        ({"tokens_per_s": 10.0}, "tokens a second"),
        ({"joules_per_token": 9.0, "baseline_joules_per_token": 2.0}, "J a token"),
        ({"prompts": 0}, "No input"),
    ],
)
def test_a_model_that_does_worse_is_named_by_what_it_does(scores: dict[str, Any], says: str) -> None:
    tried = replace(HERE, trial=Outcome(state="succeeded", result={**GOOD, **scores}))
    step = move(member("trying"), tried)
    assert (step.state, step.do) == ("failed", "")
    assert says in step.reason
    assert judge(TrialResult.model_validate(GOOD), Behaviour()) == []


def test_a_trial_that_fails_or_brings_no_scores_fails_the_device() -> None:
    assert "no space" in move(member("trying"), replace(HERE, trial=Outcome(state="failed", reason="no space"))).reason
    assert move(member("trying"), replace(HERE, trial=Outcome(state="succeeded"))).state == "failed"


def test_a_device_that_does_not_answer_or_does_not_hold_it_does_not_succeed() -> None:
    changed = replace(HERE, gen=3, ours=True, seen=3, applied=3)
    silent = replace(changed, probe=Outcome(state="succeeded", result=answered(0)))
    assert move(member("probing", gen=3), silent).state == "failed"
    assert move(member("probing", gen=3), replace(changed, probe=Outcome(state="timed-out"))).state == "failed"
    other = replace(changed, probe=Outcome(state="succeeded", result=answered(4)), holds=False)
    assert move(member("probing", gen=3), other) is None  # until the deadline
    step = at_deadline(member("probing"))
    assert step is not None
    assert step.state == "failed"


def test_what_a_device_refuses_fails_and_a_newer_document_is_left_alone() -> None:
    refused = replace(HERE, gen=3, ours=True, seen=3, applied=2, refused="no such setting")
    assert "no such setting" in move(member("changing", gen=3), refused).reason
    newer = replace(HERE, gen=4, seen=3, applied=3)
    for state in ("changing", "probing", "baking"):
        assert move(member(state, gen=3), newer).state == "left"
    assert move(member("failed", gen=3), newer) is None


def test_a_failed_device_is_given_back_what_it_had_unless_somebody_is_to_look() -> None:
    ours = replace(HERE, gen=3, ours=True)
    assert move(member("failed", gen=3), ours).do == "restore"
    assert move(member("failed", gen=3), replace(ours, gen=4)) is None  # done
    assert move(member("failed", gen=3), ours, plan=RolloutPlan(on_failure="pause")) is None


def test_a_device_that_falls_ill_while_it_bakes_fails_but_not_one_that_restarts() -> None:
    baking = member("baking", gen=3)
    assert move(baking, replace(HERE, gen=3, ours=True, healthy=False)).state == "failed"
    assert move(baking, replace(HERE, gen=3, ours=True, healthy=False, away=True), now=1e6) is None


def test_absent_devices_are_missing_at_the_deadline_and_begin_when_they_come() -> None:
    away = Facts()
    assert move(member("waiting"), away) is None
    assert at_deadline(member("waiting")).state == "missing"  # type: ignore[union-attr]
    assert move(member("missing"), away) is None
    assert move(member("missing"), HERE).state == "waiting"


def test_a_stage_counts_those_that_belong_to_it() -> None:
    def judged(*states: Any, **plan: Any) -> str:
        return verdict([member(state) for state in states], RolloutPlan(**plan)).kind

    assert judged("succeeded", "baking") == "wait"
    assert judged("succeeded", "left", "succeeded") == "pass"
    assert judged("failed", "trying", "trying") == "fail"  # at once
    assert judged("failed", "succeeded", "succeeded", "succeeded", max_failed=0.25) == "pass"
    assert (
        judged("failed", "left", "succeeded", "succeeded", max_failed=0.25) == "fail"
    )  # the share is of those that stayed
    assert judged("missing", *["succeeded"] * 4) == "pass"
    assert judged("missing", "missing", *["succeeded"] * 3) == "fail"


@given(st.integers(1, 300), st.lists(st.integers(1, 100), min_size=1, max_size=5, unique=True))
@settings(max_examples=50, deadline=None)
def test_every_device_has_one_stage_and_shares_are_of_all(count: int, percents: list[int]) -> None:
    plan = RolloutPlan(stages=tuple(Stage(percent=percent) for percent in sorted(percents)))
    devices = order("r", [f"d{number}" for number in range(count)])
    stages = assign(plan, devices, {})
    assert set(stages) == set(devices)
    for index, percent in enumerate(sorted(percents)):
        until = sum(stage <= index for stage in stages.values())
        assert until == -(-percent * count // 100)
    assert order("r", devices[::-1]) == devices
    assert count < 20 or order("other", devices) != devices


def test_a_stage_of_a_query_takes_its_own_and_leaves_the_rest() -> None:
    plan = RolloutPlan(stages=(Stage(query="site:lab"), Stage(percent=50)))
    stages = assign(plan, ["a", "b", "c", "d"], {0: {"d"}})
    assert stages == {"d": 0, "a": 1, "b": 1, "c": 2}


@pytest.mark.parametrize(
    "plan",
    [
        {"stages": []},
        {"stages": [{"percent": 50}, {"percent": 10}]},
        {"stages": [{"percent": 10, "query": "a"}]},
        {"max_failed": 2},
        {"stage": []},
    ],
)
def test_bad_plans_are_refused_by_field(plan: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read_plan(plan)
    assert caught.value.param is not None
    assert caught.value.param.startswith("plan")


class AnyOrder(RuleBasedStateMachine):
    """One device, whatever happens to it: it never succeeds without having tried, taken, answered and held, and it ends."""

    def __init__(self) -> None:
        super().__init__()
        self.member = member("waiting")
        self.facts = Facts()
        self.now = 0.0
        self.proof: set[str] = set()

    @rule(present=st.booleans(), healthy=st.booleans(), away=st.booleans())
    def presence(self, present: bool, healthy: bool, away: bool) -> None:
        self.facts = replace(self.facts, present=present, healthy=present and healthy, away=away)

    @rule(seconds=st.integers(0, 100))
    def wait(self, seconds: int) -> None:
        self.now += seconds

    @precondition(lambda self: self.facts.trial is not None and not self.facts.trial.ended)
    @rule(good=st.booleans())
    def tried(self, good: bool) -> None:
        if good:
            self.proof.add("tried")
        result = GOOD if good else {**GOOD, "agreement": 0.0}
        self.facts = replace(self.facts, trial=Outcome(state="succeeded", result=result))

    @precondition(lambda self: self.facts.ours)
    @rule(good=st.booleans())
    def reported(self, good: bool) -> None:
        if good:
            self.proof.add("applied")
            self.facts = replace(self.facts, seen=self.facts.gen, applied=self.facts.gen, refused=None)
        else:
            self.facts = replace(self.facts, seen=self.facts.gen, refused="bad")

    @precondition(lambda self: self.facts.probe is not None and not self.facts.probe.ended)
    @rule(tokens=st.integers(0, 4))
    def probed(self, tokens: int) -> None:
        if tokens:
            self.proof.add("answered")
        self.facts = replace(self.facts, probe=Outcome(state="succeeded", result=answered(tokens)))

    @rule(holds=st.booleans())
    def reports_content(self, holds: bool) -> None:
        self.facts = replace(self.facts, holds=holds)

    @rule()
    def somebody_desires_something_else(self) -> None:
        self.facts = replace(self.facts, gen=self.facts.gen + 1, ours=False)

    @rule()
    def look(self) -> None:
        step = move(self.member, self.facts, now=self.now)
        if step is None:
            return
        assert self.member.state not in SETTLED - {"failed", "missing"}
        if step.state == "baking":
            assert self.facts.holds
        if step.state != self.member.state:
            self.member = replace(self.member, state=step.state, at=self.now)
        if step.do == "try":
            self.facts = replace(self.facts, trial=self.facts.trial or Outcome(state="queued"))
        if step.do == "probe":
            self.facts = replace(self.facts, probe=self.facts.probe or Outcome(state="queued"))
        if step.do in ("change", "restore"):
            if step.do == "restore" or not self.facts.ours:
                self.facts = replace(self.facts, gen=self.facts.gen + 1, ours=True)
            if step.do == "change":
                self.member = replace(self.member, gen=self.facts.gen)

    @rule()
    def deadline(self) -> None:
        step = at_deadline(self.member)
        if step is not None:
            self.member = replace(self.member, state=step.state)
        assert self.member.state in SETTLED

    @invariant()
    def success_is_earned(self) -> None:
        if self.member.state == "succeeded":
            assert self.proof >= {"tried", "applied", "answered"}


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
