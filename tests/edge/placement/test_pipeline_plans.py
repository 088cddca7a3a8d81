"""Plans of pipelines by the planner of a device with a cloud: all candidates, what is estimated, and that nothing runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from edgewise.core.errors import EdgewiseError, ModelNotFound
from edgewise.core.privacy import Labels, Privacy
from edgewise.core.settings_links import PlacementSettings
from edgewise.edge.placement.measure import LinkMeter
from edgewise.edge.placement.planner import PlacementPlanner
from edgewise.edge.placement.protocol import Far
from edgewise.pipeline.chains.diffuse import Diffuse
from edgewise.pipeline.chains.explain import explain_pipeline
from edgewise.pipeline.chains.generate import Generate
from edgewise.pipeline.chains.kinds import Kinds
from edgewise.pipeline.chains.load import read_pipeline
from edgewise.pipeline.chains.stage_run import Asked
from edgewise.pipeline.model import Models
from edgewise.pipeline.pictures import PictureTask, explain_pictures
from edgewise.pipeline.plan import Plan
from edgewise.pipeline.receipt_store import ReceiptStore
from edgewise.pipeline.run import explain
from edgewise.pipeline.state import open_state
from edgewise.pipeline.task import Task
from edgewise.wire.messages import CloudInfo
from tests.edge.placement.test_planner import TINY, FakeCloud, SetPower
from tests.fakes.engine import FakeEngine
from tests.fakes.serving import fake_model

HEAD = 'name = "p"\n[inputs.topic]\n'
DRAFT = """
[[stages]]
name = "draft"
kind = "generate"
model = "tiny"
input = { prompt = "${topic}" }
options = { max_tokens = 100 }
"""
AGAIN = """
[[stages]]
name = "again"
kind = "generate"
model = "tiny"
input = { prompt = "again: ${draft}" }
options = { max_tokens = 30 }
"""


async def never(task: Any) -> Any:
    raise AssertionError("nothing runs here")


@dataclass
class Desk:
    """A device with one model and a cloud that has the same."""

    path: Path
    engine: FakeEngine = field(default_factory=FakeEngine)
    labels: Labels = field(default_factory=Labels)

    async def plan(self, text: str, topic: str = "cats", *, policy: Any = "prefer-cloud", **asked: Any) -> Any:
        model = fake_model(self.engine, name="tiny", max_context=400)
        cloud = CloudInfo(name="c", tenant="t", models=(TINY.model_copy(update={"digest": model.digest}),))
        store = ReceiptStore(open_state(self.path))
        planner = PlacementPlanner(
            PlacementSettings(policy=policy),
            {"cloud": Far(FakeCloud(info=cloud), LinkMeter())},
            store,
            power=SetPower(),
        )

        async def texts(task: Task, missing: int) -> Plan:
            return await explain(task, planner, missing)

        async def pictures(task: PictureTask, missing: int) -> Plan:
            return await explain_pictures(task, planner, missing)

        models = Models([model])
        kinds: Kinds = {
            "generate": Generate(models, never, self.labels, texts),
            "diffuse": Diffuse(models, never, self.labels, pictures),
        }
        told = {"id": "req", "input": {"topic": topic}, "seed": 7, "privacy": Privacy.ANY, **asked}
        try:
            return await explain_pipeline(read_pipeline(text, "p.toml", kinds), kinds, Asked(**told))
        finally:
            assert self.engine.requests == []
            assert await store.spent(0.0)
            await store.aclose()
            store._database.close()


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path / "state.db")


def candidate(stage: Any, where: str) -> Any:
    return next(one for one in stage["candidates"] if one["where"] == where)


async def test_every_stage_shows_all_places_with_their_numbers(desk: Desk) -> None:
    report = await desk.plan(HEAD + DRAFT + AGAIN)
    assert (report["pipeline"], report["privacy"]) == ("p", "any")
    assert [(one["name"], one["stage"], one["where"]) for one in report["stages"]] == [
        ("draft", "generate", "cloud"),
        ("again", "generate", "cloud"),
    ]
    for stage in report["stages"]:
        assert {one["where"] for one in stage["candidates"]} == {"local", "cloud"}
        assert all(one["why"] for one in stage["candidates"])
        cloud = candidate(stage, "cloud")["predicted"]
        assert cloud["total_ms"] > 0
        assert cloud["up_bytes"] > 0
        assert cloud["price"] > 0


async def test_what_is_not_there_yet_is_estimated_and_said_to_be(desk: Desk) -> None:
    draft, again = (await desk.plan(HEAD + DRAFT + AGAIN))["stages"]
    assert draft["estimates"] == []
    assert again["estimates"] == [
        "The text of 'draft' is not there yet: 100 tokens are expected (as such answers were until now; its max_tokens before "
        "the first one)."
    ]
    short = (await desk.plan(HEAD + DRAFT.replace("100", "10") + AGAIN))["stages"][1]
    more = candidate(again, "cloud")["predicted"]["up_bytes"] - candidate(short, "cloud")["predicted"]["up_bytes"]
    assert more == 90 * 6  # a token is written in six bytes
    long = (await desk.plan(HEAD + DRAFT.replace("100", "380") + AGAIN))["stages"][1]
    assert not candidate(long, "local")["allowed"]
    assert "the context on this device has 400" in candidate(long, "local")["why"]


async def test_pieces_are_counted_where_the_text_is_there_and_estimated_else(desk: Desk) -> None:
    over = AGAIN.replace("again: ${draft}", "again: ${part}")
    known = (await desk.plan(HEAD + over + 'over = "topic"\neach = "sentence"\n', "One. Two. Three."))["stages"][0]
    assert (known["parts"], known["parallel"], known["estimates"]) == (3, 2, [])
    draft, guessed = (await desk.plan(HEAD + DRAFT + over + 'over = "draft"\neach = "sentence"\n'))["stages"]
    assert (draft["parts"], guessed["parts"]) == (1, 5)
    assert "about 5 pieces" in guessed["estimates"][-1]
    _, tokens = (await desk.plan(HEAD + DRAFT + over + 'over = "draft"\neach = "tokens"\ntokens = 40\n'))["stages"]
    assert tokens["parts"] == 3


async def test_labels_flow_along_the_edges_and_keep_a_stage_here(desk: Desk) -> None:
    report = await desk.plan(HEAD + DRAFT + 'privacy = "private"\n' + AGAIN)
    assert report["privacy"] == "private"
    for stage in report["stages"]:
        assert (stage["privacy"], stage["where"]) == ("private", "local")
        assert "labelled 'private'" in candidate(stage, "cloud")["why"]


async def test_a_stage_that_can_run_nowhere_is_shown_with_its_reasons_and_the_others_too(desk: Desk) -> None:
    text = HEAD + DRAFT + 'privacy = "private"\nwhere = ["cloud"]\n' + AGAIN
    draft, again = (await desk.plan(text))["stages"]
    assert (draft["where"], draft["candidates"]) == (None, [])
    assert "allows cloud only" in draft["why"]
    assert "labelled 'private'" in draft["why"]
    assert again["where"] == "local"
    assert "nothing is known" in again["estimates"][0]


@pytest.mark.parametrize("given", [{"input": {}}, {"input": {"topic": "x", "other": "y"}}])
async def test_inputs_are_checked_as_for_a_run(desk: Desk, given: Any) -> None:
    with pytest.raises(EdgewiseError, match="input"):
        await desk.plan(HEAD + DRAFT, **given)


async def test_a_fault_names_its_stage(desk: Desk) -> None:
    with pytest.raises(ModelNotFound, match="Stage 'again'"):
        await desk.plan(HEAD + DRAFT + AGAIN.replace("tiny", "huge"))
