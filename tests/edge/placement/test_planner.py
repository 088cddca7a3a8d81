"""The planner over a real store, with a double of the cloud: what it hands out, stores, learns and spends."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from edgewise.core.clock import FakeClock
from edgewise.core.errors import NoPlace, NotPermitted, StorageError
from edgewise.core.priority import Priority
from edgewise.core.privacy import Clearance, Privacy, SiteClearance
from edgewise.core.settings_links import PlacementSettings
from edgewise.edge.placement.measure import LinkMeter
from edgewise.edge.placement.planner import PlacementPlanner
from edgewise.edge.placement.protocol import Far, LinkState, PowerState
from edgewise.engine.request import LinkUse, RequestStats, Segment
from edgewise.pipeline.plan import Decision, Demand, Errand, Outside, Plan
from edgewise.pipeline.receipt_store import DAY_S, Outcome, ReceiptStore, Spent
from edgewise.pipeline.state import open_state
from edgewise.wire.messages import Capability, CloudInfo
from tests.fakes.engine import FakeEngine
from tests.pipeline.test_receipt_store import outcome

DIGEST = "sha256:" + "a" * 64
TINY = Capability(
    model="tiny", digest=DIGEST, context=1000, speed=100.0, prefill=1000.0, price_in=0.001, price_out=0.002
)
UP = LinkState(True)
OTHER = TINY.model_copy(update={"digest": "sha256:" + "b" * 64})


@dataclass
class FakeCloud:
    """A test double of the offload side."""

    link: LinkState = UP
    info: CloudInfo | None = field(default_factory=lambda: CloudInfo(name="c", tenant="t", models=(TINY,)))
    far: FakeEngine = field(default_factory=FakeEngine)
    handed: list[Clearance | SiteClearance] = field(default_factory=list)

    def engine(self, clearance: Clearance | SiteClearance, demand: Demand, capability: Capability) -> Any:
        self.handed.append(clearance)
        return self.far

    def backed(self, clearance: Clearance | SiteClearance, demand: Demand, capability: Capability) -> Any:
        self.handed.append(clearance)
        return demand.local


def peer() -> FakeCloud:
    free = TINY.model_copy(update={"price_in": 0.0, "price_out": 0.0})
    return FakeCloud(info=CloudInfo(name="p", tenant="t", site=True, models=(free,)))


class SetPower:
    """What a test says of the device."""

    def __init__(self) -> None:
        self.state = PowerState()

    def read(self) -> PowerState:
        return self.state


@dataclass
class Device:
    path: Path
    clock: FakeClock = field(default_factory=FakeClock)
    cloud: FakeCloud = field(default_factory=FakeCloud)
    peer: FakeCloud | None = None
    here: FakeEngine = field(default_factory=FakeEngine)
    power: SetPower = field(default_factory=SetPower)
    stores: list[ReceiptStore] = field(default_factory=list)
    numbers: int = 0

    def far(self) -> dict[Outside, Far]:
        far: dict[Outside, Far] = {"cloud": Far(self.cloud, LinkMeter())}
        return far if self.peer is None else {**far, "peer": Far(self.peer, LinkMeter())}

    def planner(self, **settings: Any) -> PlacementPlanner:
        self.stores.append(ReceiptStore(open_state(self.path), clock=self.clock))
        return PlacementPlanner(
            PlacementSettings(**settings),
            self.far(),
            self.stores[-1],
            power=self.power,
            clock=self.clock,
        )

    def errand(self, **fields: Any) -> Errand:
        self.numbers += 1
        return Errand(**{"id": f"r{self.numbers}", "key": "k", "privacy": Privacy.ANY, **fields})

    def demand(self, **fields: Any) -> Demand:
        given: dict[str, Any] = {"local": self.here, "context": 500, "prompt_tokens": 100, "answer_tokens": 100}
        return Demand(stage="generate", model="tiny", digest=DIGEST, **{**given, **fields})

    async def decide(self, planner: PlacementPlanner, demand: Demand | None = None, **errand: Any) -> Decision[Any]:
        return (await planner.plan(self.errand(**errand), [demand or self.demand()])).decisions[0]


@pytest.fixture
async def device(tmp_path: Path) -> AsyncIterator[Device]:
    made = Device(tmp_path / "state.db")
    yield made
    for store in made.stores:
        await store.aclose()
        store._database.close()


def told(
    plan: Plan, errand: Errand, *, total_s: float, tokens: int = 100, where: str | None = None, fault: str | None = None
) -> Outcome:
    """An answer that took so long."""
    segments = () if where is None else (Segment(where=where, offset=0, numeric_class=None, why=""),)
    stats = RequestStats(
        prompt_tokens=100,
        cached_tokens=0,
        completion_tokens=tokens,
        queued_s=0.0,
        prefill_s=0.1 * total_s,
        decode_s=0.9 * total_s,
        segments=segments,
        link=None if where is None else LinkUse(up_bytes=1000, down_bytes=5000, price=0.5),
    )
    made = outcome(errand.id, plan, stats)
    return replace(made, errand=errand, total_s=total_s, fault=fault)


def told_stats() -> RequestStats:
    return RequestStats(
        prompt_tokens=100, cached_tokens=0, completion_tokens=10, queued_s=0.0, prefill_s=0.1, decode_s=0.9
    )


async def run(device: Device, planner: PlacementPlanner, *, total_s: float, tokens: int = 100, **errand: Any) -> Plan:
    """One request that takes so long wherever it runs."""
    asked = device.errand(**errand)
    plan = await planner.plan(asked, [device.demand()])
    where = plan.decisions[0].where
    device.stores[-1].ended(
        told(plan, asked, total_s=total_s, tokens=tokens, where=None if where == "local" else where)
    )
    return plan


@pytest.mark.parametrize("policy", ["prefer-cloud", "fastest", "cheapest", "balanced"])
@pytest.mark.parametrize("label", [Privacy.PRIVATE, Privacy.SITE])
async def test_a_label_keeps_a_request_here_under_every_policy(device: Device, label: Privacy, policy: str) -> None:
    planner = device.planner(policy=policy)
    decision = await device.decide(planner, privacy=label)
    assert (decision.where, decision.engine) == ("local", device.here)
    assert f"'{label.label}'" in decision.reason
    with pytest.raises(NoPlace, match="keeps it from the cloud"):
        await device.decide(planner, device.demand(local=None), privacy=label)
    assert device.cloud.handed == []


@pytest.mark.parametrize("policy", ["prefer-peer", "prefer-cloud", "fastest", "cheapest", "balanced", "local-only"])
async def test_what_is_of_the_site_goes_to_a_peer_and_never_to_the_cloud(device: Device, policy: str) -> None:
    device.peer = peer()
    planner = device.planner(policy=policy)
    for _ in range(8):  # new places are tried too
        assert (await device.decide(planner, privacy=Privacy.SITE)).where != "cloud"
        assert (await device.decide(planner, privacy=Privacy.PRIVATE)).where == "local"
    if policy != "local-only":
        away = device.demand(allowed=("cloud", "peer"))
        assert (await device.decide(planner, away, privacy=Privacy.SITE)).where == "peer"
    assert device.cloud.handed == []
    assert all(isinstance(one, SiteClearance) for one in device.peer.handed)


async def test_a_place_is_preferred_by_its_name_and_the_local_engine_is_backed_by_the_better_one(
    device: Device,
) -> None:
    device.peer = peer()
    decision = await device.decide(device.planner(policy="prefer-peer"))
    assert (decision.where, decision.engine) == ("peer", device.peer.far)
    assert {one.where for one in decision.candidates} == {"local", "cloud", "peer"}
    here = await device.decide(device.planner(policy="prefer-local"))
    assert here.where == "local"
    assert (len(device.peer.handed), device.cloud.handed) == (2, [])  # it costs nothing, and the cloud does


async def test_a_peer_that_does_not_say_that_it_is_of_the_site_is_none(device: Device) -> None:
    device.peer = FakeCloud()
    decision = await device.decide(device.planner(policy="prefer-peer"), privacy=Privacy.SITE)
    assert decision.where == "local"
    assert "intake.site" in decision.reason


async def test_what_a_peer_costs_is_no_part_of_the_budget(device: Device) -> None:
    device.peer = peer()
    planner = device.planner(policy="prefer-peer", daily_bytes=0, daily_price=0.0)
    for _ in range(3):
        assert (await run(device, planner, total_s=1.0)).decisions[0].where == "peer"
    assert (await device.decide(planner, device.demand(allowed=("local", "cloud")))).where == "local"
    assert await device.stores[-1].spent(0.0) == Spent(0, 0.0)


async def test_even_a_decision_gone_wrong_gets_no_engine_elsewhere(device: Device) -> None:
    """The last function before an engine asks for the label itself."""
    planner = device.planner(policy="prefer-cloud")
    errand, demand = device.errand(), device.demand()
    weighed = planner._weigh(errand, demand, await planner._budget.left())
    assert planner._engine(errand, demand, "cloud", weighed) is device.cloud.far
    with pytest.raises(NoPlace):
        planner._engine(replace(errand, privacy=Privacy.SITE), demand, "cloud", weighed)
    assert len(device.cloud.handed) == 1


async def test_the_cloud_is_taken_where_preferred_and_its_engine_handed_out_once(device: Device) -> None:
    decision = await device.decide(device.planner(policy="prefer-cloud"))
    assert (decision.where, decision.engine) == ("cloud", device.cloud.far)
    assert [one.why for one in decision.candidates] == ["The policy is 'prefer-cloud'.", "It was chosen."]
    here = await device.decide(device.planner(policy="prefer-local"))
    assert here.reason == "Policy 'prefer-local': expected an unknown time here against 1.10 s in the cloud."
    assert decision.predicted is not None
    assert decision.predicted.total_s == pytest.approx(1.1)  # by what the cloud says of itself
    assert decision.predicted.price == pytest.approx(100 * 0.001 / 1000 + 100 * 0.002 / 1000)
    assert len(device.cloud.handed) == 2


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"link": LinkState(False, "The cable is out.")}, "The cable is out."),
        ({"info": None}, "has not the model"),
        ({"info": CloudInfo(name="c", tenant="t", models=(OTHER,))}, "other files"),
        ({"info": CloudInfo(name="c", tenant="t", models=(TINY,), max_request_bytes=10)}, "the cloud takes 10"),
    ],
)
async def test_what_the_cloud_cannot_do_is_said(device: Device, change: dict[str, Any], reason: str) -> None:
    for name, value in change.items():
        setattr(device.cloud, name, value)
    decision = await device.decide(device.planner(policy="prefer-cloud"), device.demand(upload_bytes=400))
    assert decision.where == "local"
    assert reason in decision.reason


async def test_a_back_end_of_texts_is_not_asked_for_what_takes_tokens(device: Device) -> None:
    texts = TINY.model_copy(update={"reads": "text"})
    device.cloud.info = CloudInfo(name="c", tenant="t", models=(texts,))
    planner = device.planner(policy="prefer-cloud")
    assert (await device.decide(planner)).where == "cloud"
    decision = await device.decide(planner, device.demand(needs_tokens=True))
    assert decision.where == "local"
    assert "knows texts only" in decision.reason


async def test_pictures_of_a_prompt_keep_it_here_and_no_other_place_backs_it(device: Device) -> None:
    planner = device.planner(policy="prefer-cloud")
    decision = await device.decide(planner, device.demand(media=True))
    assert decision.where == "local"
    assert decision.engine is device.here  # not one that goes on elsewhere
    assert "seen and heard on this device only" in decision.reason
    with pytest.raises(NoPlace, match="seen and heard on this device only"):
        await device.decide(planner, device.demand(media=True, local=None))


async def test_a_prompt_beyond_the_device_goes_to_the_cloud(device: Device) -> None:
    planner = device.planner(policy="prefer-local")
    assert (await device.decide(planner)).where == "local"
    decision = await device.decide(planner, device.demand(prompt_tokens=700))
    assert decision.where == "cloud"
    assert "context on this device has 500" in decision.reason
    with pytest.raises(NoPlace, match="context on the cloud has 1000"):
        await device.decide(planner, device.demand(prompt_tokens=2000))


async def test_a_plan_is_stored_before_it_is_handed_out_and_explaining_stores_nothing(device: Device) -> None:
    planner = device.planner(policy="prefer-cloud")
    explained = await planner.explain(device.errand(), [device.demand()])
    assert explained.decisions[0].engine is None
    assert device.cloud.handed == []
    plan = await planner.plan(device.errand(), [device.demand()])
    other = sqlite3.connect(device.path)
    assert other.execute("SELECT id, place, predicted_s FROM receipts").fetchall() == [
        (plan.id, "cloud", pytest.approx(1.1))
    ]
    other.close()


async def test_it_learns_both_sides_and_takes_the_faster_one(device: Device) -> None:
    planner = device.planner()
    for policy in ("local-only", "prefer-cloud"):
        for _ in range(6):
            await run(device, planner, total_s=4.0 if policy == "local-only" else 0.8, policy=policy)
    device.cloud.info = CloudInfo(name="c", tenant="t", models=(TINY.model_copy(update={"price_out": 0.0}),))
    plan = await planner.explain(device.errand(), [device.demand()])
    (decision,) = plan.decisions
    here, there = decision.candidates
    assert here.predicted is not None
    assert there.predicted is not None
    assert here.predicted.total_s == pytest.approx(4.0, rel=0.05)
    assert there.predicted.total_s == pytest.approx(0.8, rel=0.05)
    assert (there.predicted.up_bytes, there.predicted.down_bytes) == (1000, 5000)  # as they really were
    assert decision.where == "cloud"
    assert decision.reason == "Policy 'balanced': expected 0.80 s in the cloud against 4.00 s here."
    assert here.why == "It costs more."


async def test_a_device_that_holds_back_sends_away_what_may_go_and_keeps_the_rest(device: Device) -> None:
    planner = device.planner(policy="fastest")
    for policy, total_s in (("local-only", 1.0), ("prefer-cloud", 3.0)):
        for _ in range(6):
            await run(device, planner, total_s=total_s, policy=policy)
    device.clock.advance(60)
    assert (await device.decide(planner)).where == "local"
    device.power.state = PowerState(cost=8.0)
    device.clock.advance(60)
    assert (await device.decide(planner)).where == "cloud"
    assert (await device.decide(planner, privacy=Privacy.PRIVATE)).where == "local"
    device.power.state = PowerState()
    device.clock.advance(60)
    assert (await device.decide(planner)).where == "local"


async def test_answers_of_several_places_or_that_broke_teach_nothing_of_pace(device: Device) -> None:
    planner = device.planner(policy="local-only")
    asked = device.errand()
    plan = await planner.plan(asked, [device.demand()])
    device.stores[-1].ended(told(plan, asked, total_s=5.0, fault="cancelled"))
    asked = device.errand()
    plan = await planner.plan(asked, [device.demand()])
    device.stores[-1].ended(told(plan, asked, total_s=5.0, where="cloud"))
    (decision,) = (await planner.explain(device.errand(), [device.demand()])).decisions
    assert decision.predicted is not None
    assert decision.predicted.total_s is None


async def test_the_expected_length_is_learned(device: Device) -> None:
    planner = device.planner(policy="prefer-cloud")
    before = (await planner.explain(device.errand(), [device.demand()])).decisions[0].predicted
    for _ in range(3):
        await run(device, planner, total_s=1.0, tokens=10)
    after = (await planner.explain(device.errand(), [device.demand()])).decisions[0].predicted
    assert before is not None
    assert after is not None
    assert after.price < before.price


@pytest.mark.parametrize(
    ("limit", "word"), [({"daily_bytes": 33_000}, "daily_bytes"), ({"daily_price": 2.7}, "daily_price")]
)
async def test_a_budget_is_kept_over_restarts_and_is_new_every_day(
    device: Device, limit: dict[str, Any], word: str
) -> None:
    planner = device.planner(policy="prefer-cloud", **limit)
    device.clock.advance(DAY_S - device.clock.time() % DAY_S + 100)
    device.cloud.info = CloudInfo(name="c", tenant="t", models=(TINY.model_copy(update={"price_out": 5.0}),))
    for _ in range(5):  # each costs 6000 bytes and 0.5
        assert (await run(device, planner, total_s=1.0)).decisions[0].where == "cloud"
    await device.stores[-1].flush()
    again = device.planner(policy="prefer-cloud", **limit)
    decision = await device.decide(again)
    assert decision.where == "local"
    assert word in decision.reason
    device.clock.advance(DAY_S)
    assert (await device.decide(again)).where == "cloud"


async def test_policies_of_models_classes_and_requests(device: Device) -> None:
    planner = device.planner(policy="prefer-cloud", policies=("tiny=prefer-local",))
    assert (await device.decide(planner)).where == "local"
    assert (await device.decide(planner, policy="prefer-cloud")).where == "cloud"
    assert (await device.decide(planner, policy="local-only")).where == "local"
    alias = device.demand(aliases=("set",))
    assert (
        await device.decide(device.planner(policy="prefer-cloud", policies=("set=local-only",)), alias)
    ).where == "local"
    both = device.planner(policy="prefer-cloud", policies=("tiny=prefer-cloud", "set=local-only"))
    assert (await device.decide(both, alias)).where == "local"
    planner = device.planner(policy="prefer-local", policies=("interactive=prefer-cloud",))
    assert (await device.decide(planner)).where == "cloud"
    planner = device.planner(policy="local-only")
    assert (await device.decide(planner, policy="local-only")).where == "local"
    with pytest.raises(NotPermitted, match="local-only"):
        await device.decide(planner, policy="fastest")


async def test_requests_at_the_same_time_do_not_spend_the_same_budget(device: Device) -> None:
    device.cloud.info = CloudInfo(name="c", tenant="t", models=(TINY.model_copy(update={"price_out": 5.0}),))
    planner = device.planner(policy="prefer-cloud", daily_price=1.2)  # each is expected to cost 0.5
    places = [one.where for one in await asyncio.gather(*(device.decide(planner) for _ in range(5)))]
    assert sorted(places) == ["cloud", "cloud", "local", "local", "local"]


@pytest.mark.parametrize("at_once", [1, 4, 20])
async def test_a_budget_of_bytes_holds_from_the_first_request_on(device: Device, at_once: int) -> None:
    """A slow engine, whose every token is an event of its own: four times the bytes of the usual one, and long answers."""
    planner = device.planner(policy="prefer-cloud", daily_bytes=200_000)
    spent = 0
    for _ in range(40 // at_once):
        errands = [device.errand() for _ in range(at_once)]
        plans = await asyncio.gather(*(planner.plan(errand, [device.demand()]) for errand in errands))
        for errand, plan in zip(errands, plans, strict=True):
            if plan.decisions[0].where == "cloud":
                made = told(plan, errand, total_s=1.0, where="cloud")
                (stats,) = made.stats
                assert stats is not None
                link = LinkUse(up_bytes=900, down_bytes=25_000)
                costs = replace(made.costs, up_bytes=900, down_bytes=25_000)
                device.stores[-1].ended(replace(made, stats=(replace(stats, link=link),), costs=costs))
                spent += 25_900
    assert 150_000 < spent <= 200_000


async def test_a_full_disk_stops_spending_and_nothing_else(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    async def full(_: Any) -> None:
        raise StorageError("The disk is full.")

    free, limited = device.planner(policy="prefer-cloud"), device.planner(policy="prefer-cloud", daily_price=9.0)
    for store in device.stores:
        monkeypatch.setattr(store._database, "run", full)
    assert (await device.decide(free)).where == "cloud"
    decision = await device.decide(limited)
    assert decision.where == "local"
    assert "daily_bytes" in decision.reason
    monkeypatch.undo()


async def test_places_that_were_never_measured_get_a_request_and_not_for_ever(device: Device) -> None:
    """A fresh device and a fresh cloud, which tells nothing of its pace: both are measured by the first requests."""
    device.cloud.info = CloudInfo(name="c", tenant="t", models=(TINY.model_copy(update={"speed": None}),))
    planner = device.planner()
    plans = [await run(device, planner, total_s=1.0) for _ in range(3)]
    assert {plan.decisions[0].where for plan in plans[:2]} == {"local", "cloud"}
    assert "never measured" in plans[0].decisions[0].reason
    assert plans[2].decisions[0].reason.startswith("Policy 'balanced': expected 1.00 s")
    await device.stores[-1].flush()
    again = await device.planner().explain(device.errand(), [device.demand()])
    assert again.decisions[0].reason == plans[2].decisions[0].reason  # a restart forgets nothing of it
    device.path = device.path.with_name("other.db")
    broken = device.planner()
    for _ in range(10):  # no answer comes from there, so there is nothing to learn
        asked = device.errand(policy="fastest")
        plan = await broken.plan(asked, [device.demand()])
        where = plan.decisions[0].where
        device.stores[-1].ended(told(plan, asked, total_s=1.0, fault="link_lost" if where == "cloud" else None))
    assert where == "local"


async def test_a_plan_holds_what_was_measured_and_says_what_is_unknown(device: Device) -> None:
    planner = device.planner()
    planner._far["cloud"].meter.round_trip(0.02)
    measured = (await planner.explain(device.errand(), [device.demand()])).measured
    assert (measured["round_trip_ms"], measured["up_bits_per_s"], measured["hottest_c"]) == (20.0, None, None)


@pytest.mark.parametrize(
    ("policy", "errand", "where"),
    [
        ("balanced", {}, "cloud"),
        ("balanced", {"deadline_s": 600.0}, "cloud"),
        ("balanced", {"deadline_s": 39.0}, "local"),
        ("balanced", {"priority": Priority.REALTIME}, "local"),
        ("balanced", {"privacy": Privacy.PRIVATE}, "local"),
        ("prefer-local", {}, "local"),
        ("prefer-local", {"deadline_s": 600.0}, "local"),
        ("local-only", {}, "local"),
    ],
)
async def test_nobody_is_made_to_wait_for_an_experiment(
    device: Device, policy: str, errand: dict[str, Any], where: str
) -> None:
    """A cloud that tells nothing of its pace, and a device that takes four seconds: who may find out?"""
    device.cloud.info = CloudInfo(name="c", tenant="t", models=(TINY.model_copy(update={"speed": None}),))
    planner = device.planner(policy=policy)
    for _ in range(3):
        await run(device, planner, total_s=4.0, policy="local-only")
    assert (await device.decide(planner, **errand)).where == where


async def test_a_burst_is_no_experiment(device: Device) -> None:
    device.cloud.info = CloudInfo(name="c", tenant="t", models=(TINY.model_copy(update={"speed": None}),))
    planner = device.planner()
    for _ in range(3):
        await run(device, planner, total_s=4.0, policy="local-only")
    places = [one.where for one in await asyncio.gather(*(device.decide(planner) for _ in range(20)))]
    assert places.count("cloud") == 3


async def test_lengths_of_many_limits_are_not_kept_for_ever(device: Device) -> None:
    planner = device.planner()
    for limit in range(6000):
        planner.experience._lengths.learn(DIGEST, "k", limit, [told_stats()])
    assert len(planner.experience._lengths._lengths) <= 4096
    assert planner.experience._lengths.expect(DIGEST, "k", 5999) == 10
