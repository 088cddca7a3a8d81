"""Plans and receipts: when they are on disk, how they are found, what was spent, and when they go."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from edgewise.core.clock import FakeClock
from edgewise.core.errors import NotFound, StorageError
from edgewise.engine.request import LinkUse, RequestStats, Segment
from edgewise.pipeline.plan import Candidate, Decision, Errand, Plan, Prediction
from edgewise.pipeline.receipt_store import DAY_S, Outcome, Query, ReceiptStore, Spent
from edgewise.pipeline.receipts import Pace, TextReceipt, costs_of, generate_receipt, show_plan
from edgewise.pipeline.state import open_state
from tests.fakes.engine import FakeEngine

STATS = RequestStats(
    prompt_tokens=10, cached_tokens=0, completion_tokens=100, queued_s=0.0, prefill_s=0.5, decode_s=1.5
)
HANDED_OVER = replace(
    STATS,
    segments=(
        Segment(where="cloud", offset=0, numeric_class="a", why="The plan."),
        Segment(where="local", offset=37, numeric_class="b", why="The link was lost."),
    ),
    link=LinkUse(up_bytes=900, down_bytes=100, price=0.25),
)


def plan_of(where: str = "cloud", total_s: float = 2.0) -> Plan:
    predicted = Prediction(
        first_s=0.5, total_s=total_s, up_bytes=400, down_bytes=200, price=0.2, most_bytes=1000, most_price=0.5
    )
    candidate = Candidate(where="local", allowed=False, why="The model is not here.")
    decision = Decision(
        stage="generate",
        where=where,  # type: ignore[arg-type]
        reason="Because.",
        engine=FakeEngine(),
        predicted=predicted,
        candidates=(candidate,),
    )
    return Plan((decision,), policy="balanced", watts=10.0)


def outcome(id: str, plan: Plan, stats: RequestStats = STATS, model: str = "tiny", fault: str | None = None) -> Outcome:
    pace = Pace(first_token_s=0.5, generation_s=1.5, tokens=100)
    receipt = TextReceipt(
        request_id=id,
        model=model,
        digest="sha256:0",
        priority="interactive",
        privacy="any",
        seed=1,
        sampling={},
        plan=show_plan(plan),
        total_ms=2500.0,
        costs=costs_of([stats], [stats.link], plan.watts),
        stages=(generate_receipt(plan.decision("generate"), [stats], 0, pace),),
        ignored=(),
        warnings=(),
    )
    return Outcome(
        errand=Errand(id=id, key="k"),
        model=model,
        plan=plan,
        receipt=receipt.to_dict(),
        costs=receipt.costs,
        stats=(stats,),
        first_s=0.5,
        total_s=2.5,
        fault=fault,
    )


HERE = (Segment(where="local", offset=0, numeric_class="b", why="The cloud was lost."),)


@pytest.mark.parametrize(
    ("planned", "segments", "where", "told"),
    [
        ("local", [()], "local", "fake"),
        ("cloud", [HANDED_OVER.segments], "cloud+local", None),
        ("cloud", [HERE], "local", "b"),
        ("cloud", [HERE, HANDED_OVER.segments[:1]], "local+cloud", None),
        ("local", [(), HANDED_OVER.segments[:1]], "local+cloud", None),
        ("cloud", [None], "cloud", "fake"),
    ],
)
def test_a_stage_says_where_it_really_ran(
    planned: str, segments: list[tuple[Segment, ...] | None], where: str, told: str | None
) -> None:
    plan = plan_of(planned)
    decision, stats = (
        plan.decision("generate"),
        [None if one is None else replace(STATS, segments=one) for one in segments],
    )
    stage = generate_receipt(decision, stats, 0, Pace(first_token_s=0.5, generation_s=1.5, tokens=100))
    assert stage.where == where
    assert (stage.numeric_class is None) == (told is None)
    assert (stage.precision is None) == (told != "fake")
    assert ("The cloud was lost." in stage.why) == (HERE in segments)
    assert show_plan(plan)["stages"][0]["where"] == planned


@dataclass
class Stored:
    path: Path
    clock: FakeClock = field(default_factory=FakeClock)

    def open(self) -> ReceiptStore:
        return ReceiptStore(open_state(self.path), keep_s=2 * DAY_S, clock=self.clock)


@pytest.fixture
async def stored(tmp_path: Path) -> AsyncIterator[tuple[Stored, ReceiptStore]]:
    made = Stored(tmp_path / "state.db")
    store = made.open()
    yield made, store
    await store.aclose()
    store._database.close()


async def test_a_plan_is_on_disk_before_it_is_used_and_its_receipt_joins_it(
    stored: tuple[Stored, ReceiptStore],
) -> None:
    made, store = stored
    plan = plan_of()
    await store.planned(Errand(id="r1", key="k"), "tiny", plan)
    other = sqlite3.connect(made.path)
    assert other.execute("SELECT id, predicted_s, real_s FROM receipts").fetchall() == [("r1", 2.0, None)]
    other.close()
    assert (await store.get("r1"))["state"] == "running"
    store.ended(outcome("r1", plan, HANDED_OVER))
    found = await store.get("r1")
    assert (found["state"], found["predicted_ms"], found["real_ms"], found["error"]) == ("done", 2000.0, 2500.0, 0.2)
    assert found["where"] == "cloud+local"
    (stage,) = found["receipt"]["stages"]
    assert [segment["reads"] for segment in stage["segments"]] == ["cloud from 0", "local from 37"]
    assert found["receipt"]["costs"] == {
        "up_bytes": 900,
        "down_bytes": 100,
        "price": 0.25,
        "joules": 12.6,  # 63 of 100 tokens were made here: 10 W x 2 s x 0.63
        "hedged": False,
    }
    assert found["plan"]["stages"][0]["candidates"][0]["why"] == "The model is not here."


async def test_what_was_spent_survives_a_crash_and_counts_what_runs_with_what_it_may_cost(
    stored: tuple[Stored, ReceiptStore],
) -> None:
    made, store = stored
    await store.planned(Errand(id="old"), "tiny", plan_of())
    made.clock.advance(DAY_S)
    noon = made.clock.time()
    for id in ("r1", "r2"):
        await store.planned(Errand(id=id), "tiny", plan_of())
    assert await store.spent(noon) == Spent(2000, 1.0)
    store.ended(outcome("r1", plan_of(), HANDED_OVER))
    assert await store.spent(noon) == Spent(2000, 0.75)
    crashed = made.open()  # nobody told the store of an end of r2
    assert await crashed.spent(noon) == Spent(2000, 0.75)
    crashed._database.close()


async def test_receipts_are_found_by_model_place_key_and_time_the_latest_first(
    stored: tuple[Stored, ReceiptStore],
) -> None:
    made, store = stored
    start = made.clock.time()
    for number, (model, stats) in enumerate([("tiny", STATS), ("big", HANDED_OVER), ("tiny", HANDED_OVER)]):
        store.ended(outcome(f"r{number}", plan_of("local"), stats, model))
        made.clock.advance(10)

    async def ids(**query: object) -> list[str]:
        return [one["id"] for one in await store.find(Query(**query))]  # type: ignore[arg-type]

    assert await ids() == ["r2", "r1", "r0"]
    assert await ids(model="tiny") == ["r2", "r0"]
    assert await ids(where="cloud") == ["r2", "r1"]
    assert await ids(where="local", model="big") == ["r1"]
    assert await ids(since=start + 5) == ["r2", "r1"]
    assert await ids(until=start + 5) == ["r0"]
    assert await ids(key="nobody") == []
    assert await ids(limit=1) == ["r2"]


async def test_a_broken_answer_has_no_real_latency(stored: tuple[Stored, ReceiptStore]) -> None:
    _, store = stored
    store.ended(outcome("r", plan_of(), fault="cancelled"))
    found = await store.get("r")
    assert (found["state"], found["real_ms"], found["error"]) == ("cancelled", None, None)


async def test_what_ran_when_the_service_was_killed_runs_no_more_and_was_paid(
    stored: tuple[Stored, ReceiptStore],
) -> None:
    made, store = stored
    noon = made.clock.time()
    await store.planned(Errand(id="r1"), "tiny", plan_of())
    again = made.open()
    assert (await again.get("r1"))["state"] == "interrupted"
    assert await again.spent(noon) == Spent(1000, 0.5)
    await again.planned(Errand(id="r1"), "tiny", plan_of())  # the same request is tried again
    assert (await again.get("r1"))["state"] == "running"
    again.ended(outcome("r1", plan_of(), HANDED_OVER))
    assert await again.spent(noon) == Spent(2000, 0.75)
    again.ended(outcome("r1", plan_of(), HANDED_OVER))
    await again.planned(Errand(id="r1"), "tiny", plan_of())  # and once more, before its last receipt is on disk
    states = [one["state"] for one in await again.find(Query(request="r1"))]
    assert states == ["running", "done", "interrupted"]
    again._database.close()


async def test_a_disk_that_refuses_for_long_costs_old_receipts_and_no_memory(
    stored: tuple[Stored, ReceiptStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def full(_: object) -> None:
        raise StorageError("The disk is full.")

    _, store = stored
    with monkeypatch.context() as patch:
        patch.setattr(store._database, "run", full)
        for number in range(2500):
            store.ended(outcome(f"r{number}", plan_of()))
        with pytest.raises(StorageError):
            await store.flush()
    assert (await store.get("r2499"))["state"] == "done"
    assert len(await store.find(Query(limit=1000))) == 1000
    assert "pending=0" in repr(store)
    with pytest.raises(NotFound):
        await store.get("r499")


async def test_old_receipts_go_and_a_learner_hears_of_every_end(stored: tuple[Stored, ReceiptStore]) -> None:
    made, store = stored
    heard: list[str] = []

    def learn(one: Outcome) -> str:
        heard.append(one.errand.id)
        return f"note of {one.errand.id}"

    store.learner = learn
    store.ended(outcome("old", plan_of()))
    await store.flush()
    made.clock.advance(2 * DAY_S + 1)
    store.ended(outcome("new", plan_of()))
    await store.flush()
    assert heard == ["old", "new"]
    with pytest.raises(NotFound, match="keep_days"):
        await store.get("old")
    assert (await store.get("new"))["id"] == "new"
    for number in range(5):
        made.clock.advance(1)
        store.ended(outcome(f"other{number}", plan_of(), model="other"))
    await store.flush()
    store.ended(outcome("chain/draft/0", plan_of(), model="third"))
    store.ended(outcome("chain/draft/1", plan_of(), model="third"))
    store.ended(outcome("chained", plan_of(), model="third"))
    await store.flush()
    assert [one["id"] for one in await store.find(Query(request="chain"))] == ["chain/draft/1", "chain/draft/0"]
    again = made.open()
    assert await again.lessons(2, 100) == [
        "note of new",
        "note of other3",
        "note of other4",
        "note of chain/draft/1",
        "note of chained",
    ]
    assert len(await again.lessons(9, 1)) == 1
    again._database.close()
