"""Where a stage runs, over all circumstances: never where it must not, monotone in time and money, without flapping."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgewise.core.errors import NoPlace
from edgewise.core.priority import Priority
from edgewise.core.privacy import Privacy
from edgewise.edge.placement.budget import Left
from edgewise.edge.placement.choice import Option, Weighed, decide
from edgewise.edge.placement.cost import Strain, score
from edgewise.edge.placement.gates import Sight, matching, ruled_out
from edgewise.edge.placement.hysteresis import ADVANTAGE, DWELL_S, Stay, Stays, choose
from edgewise.edge.placement.policy import POLICIES, PREFERRED
from edgewise.edge.placement.protocol import LinkState
from edgewise.pipeline.plan import Demand, Errand, Place, PolicyName, Prediction
from edgewise.wire.messages import Capability, CloudInfo
from tests.fakes.engine import FakeEngine

DIGEST, OTHER = "sha256:" + "a" * 64, "sha256:" + "b" * 64

seconds = st.floats(0.001, 1e4)
predictions = st.builds(
    Prediction,
    first_s=st.none(),
    total_s=st.none() | seconds,
    up_bytes=st.integers(0, 10**9),
    down_bytes=st.integers(0, 10**9),
    joules=st.none() | st.floats(0, 1e6),
    price=st.floats(0, 100),
)
capabilities = st.builds(
    Capability,
    model=st.sampled_from(["tiny", "big"]),
    digest=st.sampled_from([None, DIGEST, OTHER]),
    context=st.none() | st.integers(1, 5000),
)
infos = st.builds(
    CloudInfo,
    name=st.just("c"),
    tenant=st.just("t"),
    models=st.lists(capabilities, max_size=3).map(tuple),
    max_request_bytes=st.integers(0, 20_000),
)
errands = st.builds(
    Errand,
    id=st.just("r"),
    privacy=st.sampled_from(Privacy),
    priority=st.sampled_from(Priority),
    deadline_s=st.none() | seconds,
)
demands = st.builds(
    Demand,
    stage=st.just("generate"),
    model=st.just("tiny"),
    digest=st.just(DIGEST),
    local=st.sampled_from([None, FakeEngine(), FakeEngine(state="failed")]),
    context=st.none() | st.integers(1, 5000),
    prompt_tokens=st.integers(0, 4000),
    answer_tokens=st.integers(1, 4000),
    upload_bytes=st.integers(0, 20_000),
    allowed=st.sampled_from([(), ("local",), ("cloud",), ("local", "cloud"), ("peer",)]),
)
strains = st.builds(Strain, hot=st.booleans(), battery=st.booleans())
lefts = st.builds(Left, st.none() | st.integers(-10, 2 * 10**9), st.none() | st.floats(-1, 200))


@st.composite
def sights(draw: st.DrawFn, demand: Demand) -> tuple[Sight, Sight]:
    info = draw(st.none() | infos)
    there = Sight(
        where="cloud",
        link=LinkState(draw(st.booleans()), "It is down."),
        info=info,
        capability=matching(demand, info),
        left=draw(lefts),
        predicted=draw(predictions),
    )
    return Sight(where="local", predicted=draw(predictions)), there


def weigh(errand: Errand, demand: Demand, policy: PolicyName, both: tuple[Sight, Sight], strain: Strain) -> Weighed:
    options = []
    for sight in both:
        why = ruled_out(errand, demand, policy, sight)
        assert sight.predicted is not None
        options.append(Option(sight, why, None if why else score(policy, sight.where, sight.predicted, strain=strain)))
    return Weighed(policy, tuple(options))


@settings(max_examples=200, deadline=None)
@given(errand=errands, demand=demands, policy=st.sampled_from(POLICIES), data=st.data())
def test_no_circumstances_lead_to_a_place_that_is_forbidden(
    errand: Errand, demand: Demand, policy: PolicyName, data: st.DataObject
) -> None:
    here, there = data.draw(sights(demand))
    weighed = weigh(errand, demand, policy, (here, there), data.draw(strains))
    used = data.draw(st.none() | st.builds(Stay, st.sampled_from(["local", "cloud"]), st.none() | seconds))

    def choose_from(_: object, scores: Mapping[Place, float], now: float, liked: Place | None = None) -> Stay:
        return choose(used, scores, now, liked)

    if all(option.why for option in weighed.options):
        with pytest.raises(NoPlace) as refusal:
            decide(errand, demand, weighed, choose_from, 50.0)
        assert all(str(option.why) in refusal.value.message for option in weighed.options)
        return
    _, decision = decide(errand, demand, weighed, choose_from, 50.0)
    needed = demand.prompt_tokens + demand.answer_tokens
    assert decision.where in (demand.allowed or ("local", "cloud"))
    assert {candidate.where for candidate in decision.candidates} == {"local", "cloud"}
    assert all(candidate.why for candidate in decision.candidates)
    if decision.where == "local":
        assert demand.local is not None
        assert demand.local.state != "failed"
        assert demand.context is None or needed <= demand.context
        return
    capability = there.capability
    assert errand.privacy is Privacy.ANY
    assert policy != "local-only"
    assert there.link is not None
    assert there.link.up
    assert there.info is not None
    assert demand.upload_bytes <= there.info.max_request_bytes
    assert capability is not None
    assert capability.digest in (DIGEST, None)
    assert capability.context is None or needed <= capability.context
    assert decision.predicted is not None
    assert there.left.bytes is None or decision.predicted.up_bytes + decision.predicted.down_bytes <= there.left.bytes
    assert there.left.price is None or decision.predicted.price <= there.left.price


@settings(max_examples=200, deadline=None)
@given(
    policy=st.sampled_from(POLICIES),
    where=st.sampled_from(["local", "cloud"]),
    predicted=predictions.filter(lambda one: one.total_s is not None),
    slower=st.floats(0.01, 1e3),
    dearer=st.floats(0.001, 10),
    strain=strains,
)
def test_a_place_that_becomes_slower_or_dearer_never_costs_less(
    policy: PolicyName, where: Place, predicted: Prediction, slower: float, dearer: float, strain: Strain
) -> None:
    assert predicted.total_s is not None
    base = score(policy, where, predicted, strain=strain)
    assert score(policy, where, replace(predicted, total_s=predicted.total_s + slower), strain=strain) > base
    assert score(policy, where, predicted, slower, strain=strain) > base
    assert score(policy, where, replace(predicted, price=predicted.price + dearer), strain=strain) > base
    assert score(policy, where, replace(predicted, up_bytes=predicted.up_bytes + 10**9), strain=strain) >= base


def prediction(total_s: float, price: float = 0.0, joules: float | None = None) -> Prediction:
    return Prediction(first_s=None, total_s=total_s, price=price, joules=joules)


@pytest.mark.parametrize(
    ("policy", "here", "there", "expected"),
    [
        ("balanced", prediction(2.0), prediction(0.5), "cloud"),
        ("balanced", prediction(2.0), prediction(0.5, price=0.01), "local"),
        ("fastest", prediction(2.0), prediction(1.0, price=3.0), "cloud"),
        ("cheapest", prediction(50.0), prediction(0.5, price=0.001), "local"),
        ("cheapest", prediction(50.0), prediction(0.5), "cloud"),
        ("prefer-local", prediction(50.0), prediction(0.5), "local"),
        ("prefer-cloud", prediction(0.5), prediction(50.0, price=1.0), "cloud"),
        ("local-only", prediction(50.0), prediction(0.5), "local"),
    ],
)
def test_what_each_policy_takes(policy: PolicyName, here: Prediction, there: Prediction, expected: Place) -> None:
    assert decided(policy, here, there)[0] == expected


def decided(
    policy: PolicyName, here: Prediction, there: Prediction, deadline_s: float | None = None
) -> tuple[Place, str]:
    demand = Demand(stage="generate", model="tiny", digest=DIGEST, local=FakeEngine(), answer_tokens=5)
    info = CloudInfo(name="c", tenant="t", models=(Capability(model="tiny", digest=DIGEST),))
    both = (
        Sight(where="local", predicted=here),
        Sight(where="cloud", link=LinkState(True), info=info, capability=info.models[0], predicted=there),
    )
    errand = Errand(id="r", privacy=Privacy.ANY, deadline_s=deadline_s)
    weighed = weigh(errand, demand, policy, both, Strain())
    _, decision = decide(errand, demand, weighed, Stays().take, 0.0)
    return decision.where, decision.reason


def test_a_deadline_moves_a_request_and_a_hopeless_one_is_tried_where_it_costs_least() -> None:
    assert decided("prefer-local", prediction(5.0), prediction(0.5), deadline_s=1.0)[0] == "cloud"
    where, reason = decided("balanced", prediction(5.0), prediction(3.0), deadline_s=1.0)
    assert where == "cloud"
    assert "deadline" in reason


def test_noise_below_the_advantage_never_changes_the_place() -> None:
    """Costs that differ by less than the hysteresis, with noise, over an hour of requests: one place, whoever began."""
    rng = random.Random(5)
    stays = Stays()
    places = {
        stays.take("lane", {"local": rng.uniform(0.95, 1.05), "cloud": rng.uniform(0.95, 1.05)}, float(now)).where
        for now in range(3600)
    }
    assert len(places) == 1


def test_noise_of_any_size_changes_the_place_at_most_once_a_dwell() -> None:
    rng = random.Random(6)
    stays = Stays()
    changes, last = 0, None
    for now in range(3600):
        where = stays.take("lane", {"local": rng.uniform(0.1, 10), "cloud": rng.uniform(0.1, 10)}, float(now)).where
        changes += last not in (None, where)
        last = where
    assert 2 < changes <= 3600 / DWELL_S + 1


def test_a_place_is_left_for_a_clearly_better_one_at_once_when_gone_and_back_after_the_dwell() -> None:
    stay = choose(None, {"local": 1.0, "cloud": 0.9}, 0.0)
    assert stay == Stay("cloud")
    assert choose(stay, {"local": 0.9 * (1 - ADVANTAGE) + 1e-6, "cloud": 0.9}, 1.0) == stay
    assert choose(stay, {"local": 0.7, "cloud": 0.9}, 1.0) == Stay("local", 1.0)
    lost = choose(stay, {"local": 9.0}, 2.0)
    assert lost == Stay("local", 2.0)
    assert choose(lost, {"local": 9.0, "cloud": 0.1}, 2.0 + DWELL_S - 1) == lost
    assert choose(lost, {"local": 9.0, "cloud": 0.1}, 2.0 + DWELL_S).where == "cloud"
    assert choose(lost, {"local": 9.0, "cloud": 0.1}, 3.0, "cloud").where == "cloud"  # a preference is a rule


def test_the_same_files_go_before_the_same_name() -> None:
    demand = Demand(stage="generate", model="tiny", digest=DIGEST)
    named, same, other = (Capability(model=model, digest=digest) for model, digest in NAMES)

    def found(*models: Capability) -> Any:
        return matching(demand, CloudInfo(name="c", tenant="t", models=models))

    assert found(named, same) == same
    assert found(other, named) == named
    assert found(other) is None
    assert matching(demand, None) is None
    assert matching(replace(demand, stage="diffuse"), CloudInfo(name="c", tenant="t", models=(same,))) is None


NAMES = (("tiny", None), ("renamed", DIGEST), ("tiny", OTHER))


def test_only_preferences_are_rules() -> None:
    assert set(PREFERRED) == {"prefer-local", "prefer-cloud", "prefer-peer"}
