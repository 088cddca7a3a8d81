"""A chain of stages over an engine of ours: what overlaps, what flows along, what ends with what."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from edgewise.core.errors import (
    ContextLengthExceeded,
    DeadlineExceeded,
    EngineFault,
    InvalidRequest,
    ShuttingDown,
)
from edgewise.core.patience import within
from edgewise.core.priority import Priority
from edgewise.core.privacy import Labels, Privacy
from edgewise.engine.request import GenerateRequest
from edgewise.pipeline.chains.chain import Chain
from edgewise.pipeline.chains.generate import Generate
from edgewise.pipeline.chains.load import read_pipeline
from edgewise.pipeline.chains.stage_run import Asked, ChainPiece
from edgewise.pipeline.model import Models
from edgewise.pipeline.plan import Demand, Errand, LocalPlanner, Plan
from edgewise.pipeline.run import Run, explain, start_run
from edgewise.pipeline.task import Task
from tests.api.harness import until
from tests.fakes.engine import FakeEngine, Fault
from tests.fakes.serving import fake_model, says

HEAD = 'name = "p"\n[inputs.topic]\n'
TWO = (
    HEAD
    + """
[[stages]]
name = "draft"
kind = "generate"
model = "first"
input = { prompt = "${topic}" }

[[stages]]
name = "rewrite"
kind = "generate"
model = "second"
over = "draft"
each = "sentence"
parallel = 2
input = { prompt = "again: ${part}" }
"""
)


class Seen(LocalPlanner):
    """Remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[Errand, Demand]] = []

    async def plan(self, errand: Errand, demands: Sequence[Demand]) -> Plan:
        self.asked += [(errand, demand) for demand in demands]
        return await super().plan(errand, demands)


@dataclass
class Bench:
    """Two models, each on an engine of its own."""

    first: FakeEngine = field(default_factory=FakeEngine)
    second: FakeEngine = field(default_factory=FakeEngine)
    labels: Labels = field(default_factory=Labels)
    context: int = 4096
    planner: Seen = field(default_factory=Seen)

    def chain(self, text: str, topic: str = "cats", **asked: Any) -> Chain:
        models = Models(
            [
                fake_model(self.first, name="first", max_context=self.context),
                fake_model(self.second, name="second", max_context=self.context),
            ]
        )

        async def start(task: Task) -> Run:
            return await start_run(task, self.planner)

        async def tell(task: Task, missing: int) -> Plan:
            return await explain(task, self.planner, missing)

        kinds = {"generate": Generate(models, start, self.labels, tell)}
        told = {"id": "req", "input": {"topic": topic}, "seed": 7, "privacy": Privacy.ANY, **asked}
        return Chain(read_pipeline(text, "p.toml", kinds), kinds, Asked(**told))


async def run(chain: Chain) -> list[ChainPiece]:
    chain.start()
    try:
        return [piece async for piece in chain.pieces()]
    finally:
        await chain.aclose()


def prompt_of(request: GenerateRequest) -> str:
    return bytes(token for token in request.prompt if token < 256).decode()


def echo(request: GenerateRequest) -> Sequence[int]:
    """Answers a prompt "again: X" with "<X>"."""
    return [*f"<{prompt_of(request).removeprefix('again: ')}>".encode()]


async def test_a_stage_begins_with_the_first_sentence_of_the_one_before() -> None:
    bench = Bench(FakeEngine(script=says("One. Two. Three")), FakeEngine(script=echo))
    chain = bench.chain(TWO)
    pieces = await run(chain)
    assert chain.output("draft").text == "One. Two. Three"
    assert chain.output("rewrite").text == "<One.> <Two.> <Three>"
    first_rewrite = next(number for number, one in enumerate(pieces) if one.stage == "rewrite")
    last_draft = max(number for number, one in enumerate(pieces) if one.stage == "draft")
    assert first_rewrite < last_draft
    for part in range(3):
        mine = [one.piece for one in pieces if (one.stage, one.part) == ("rewrite", part)]
        assert [piece.offset for piece in mine] == [sum(one.count for one in mine[:at]) for at in range(len(mine))]
        assert [piece.finish is not None for piece in mine] == [False] * (len(mine) - 1) + [True]


async def test_outputs_follow_each_other_in_order_however_their_pieces_end() -> None:
    second = FakeEngine(
        script=lambda request: [*prompt_of(request)[7:].encode()] * (9 if "One" in prompt_of(request) else 1)
    )
    bench = Bench(FakeEngine(script=says("One. Two. Three. Four.")), second)
    chain = bench.chain(TWO)
    await run(chain)
    assert chain.output("rewrite").text == f"{'One.' * 9} Two. Three. Four."
    assert len(second.requests) == 4


async def test_the_same_seed_gives_the_same_answer_and_pieces_have_seeds_of_their_own() -> None:
    texts, seeds = [], []
    for seed in (7, 7, 8):
        bench = Bench()
        chain = bench.chain(TWO, seed=seed)
        await run(chain)
        texts.append(chain.output("rewrite").text)
        seeds.append([request.sampling.seed for request in (*bench.first.requests, *bench.second.requests)])
    assert texts[0] == texts[1] != texts[2]
    assert len(set(seeds[0])) == len(seeds[0])


async def test_one_receipt_has_all_stages_and_their_parts() -> None:
    bench = Bench(FakeEngine(script=says("One. Two.")), FakeEngine(script=echo))
    chain = bench.chain(TWO)
    await run(chain)
    receipt = chain.receipt()
    assert [(stage["name"], stage["model"]) for stage in receipt["stages"]] == [
        ("draft", "first"),
        ("rewrite", "second"),
    ]
    ids = [[part["request_id"] for part in stage["parts"]] for stage in receipt["stages"]]
    assert ids == [["req/draft/0"], ["req/rewrite/0", "req/rewrite/1"]]
    assert all(part["stages"][0]["where"] == "local" for stage in receipt["stages"] for part in stage["parts"])
    usage = chain.usage()
    requests = [*bench.first.requests, *bench.second.requests]
    assert usage.prompt_tokens == sum(len(request.prompt) for request in requests)
    assert usage.completion_tokens == len("One. Two.") + 1 + len("<One.>") + len("<Two.>")


# --- labels and constraints ------------------------------------------------------------------------------------------------


async def test_the_strictest_label_flows_along_every_edge_also_that_of_a_model() -> None:
    bench = Bench(FakeEngine(script=says("One. Two.")), labels=Labels(models={"first": Privacy.SITE}))
    aside = '[[stages]]\nname = "aside"\nkind = "generate"\nmodel = "second"\ninput = { prompt = "${topic}" }\n'
    private = aside.replace("aside", "end").replace("topic", "rewrite") + 'privacy = "private"\n'
    chain = bench.chain(TWO + aside + private)
    await run(chain)
    labels = {errand.id.split("/")[1]: errand.privacy for errand, _ in bench.planner.asked}
    assert labels == {"draft": Privacy.SITE, "rewrite": Privacy.SITE, "aside": Privacy.ANY, "end": Privacy.PRIVATE}
    shown = {stage["name"]: stage["privacy"] for stage in chain.receipt()["stages"]}
    assert shown == {"draft": "site", "rewrite": "site", "aside": "any", "end": "private"}
    assert chain.receipt()["privacy"] == "private"


@pytest.mark.parametrize("given", ["request", "pipeline"])
async def test_the_label_of_the_request_or_the_pipeline_holds_for_every_stage(given: str) -> None:
    bench = Bench(FakeEngine(script=says("One.")))
    text = TWO if given == "request" else 'privacy = "private"\n' + TWO
    await run(bench.chain(text, privacy=Privacy.PRIVATE if given == "request" else Privacy.ANY))
    assert {errand.privacy for errand, _ in bench.planner.asked} == {Privacy.PRIVATE}


async def test_places_policy_and_class_of_a_stage_reach_the_planner() -> None:
    extra = 'where = ["local"]\npolicy = "cheapest"\npriority = "bulk"\n'
    bench = Bench(FakeEngine(script=says("One.")))
    await run(bench.chain(TWO + extra, policy="fastest", priority=Priority.BACKGROUND))
    (first, draft), (second, rewrite) = bench.planner.asked
    assert (first.policy, first.priority, draft.allowed) == ("fastest", Priority.BACKGROUND, ())
    assert (second.policy, second.priority, rewrite.allowed) == ("cheapest", Priority.BULK, ("local",))


async def test_a_class_of_a_stage_is_never_more_urgent_than_the_request() -> None:
    bench = Bench(FakeEngine(script=says("One.")))
    await run(bench.chain(TWO + 'priority = "realtime"\n', priority=Priority.BACKGROUND))
    assert bench.planner.asked[1][0].priority == Priority.BACKGROUND


async def test_a_precision_that_the_engine_does_not_have_is_refused_before_a_token() -> None:
    bench = Bench()
    await run(bench.chain(TWO.replace('name = "draft"', 'name = "draft"\nprecision = "float32"')))
    chain = bench.chain(TWO.replace('name = "draft"', 'name = "draft"\nprecision = "int4"'))
    with pytest.raises(
        InvalidRequest, match=r"'draft': The stage asks for precision 'int4', but .* computes with float32"
    ):
        await run(chain)
    assert bench.first.pages_used == 0
    rounded = Bench(FakeEngine(quantize="int4"))
    await run(rounded.chain(TWO.replace('name = "draft"', 'name = "draft"\nprecision = "int4"')))
    with pytest.raises(InvalidRequest, match="float32 and weights of int4"):
        await run(rounded.chain(TWO.replace('name = "draft"', 'name = "draft"\nprecision = "float32"')))


# --- ends ------------------------------------------------------------------------------------------------------------------


async def test_closing_a_chain_ends_every_stage_within_a_step() -> None:
    bench = Bench(FakeEngine(script=says("One. Two. " + "x" * 2000)), FakeEngine())
    bench.second.hold.clear()
    chain = bench.chain(TWO)
    chain.start()
    await until(lambda: len(bench.second.open) == 2 and bench.first.open)
    await chain.aclose()
    await chain.aclose()
    assert (bench.first.pages_used, bench.second.pages_used) == (0, 0)
    assert bench.first.aborted == 1


async def test_a_stage_that_fails_ends_the_others_and_is_named() -> None:
    bench = Bench(FakeEngine(script=says("One. Two. Three. Four. " + "x" * 1000)), FakeEngine(fault=Fault(1, 3)))
    chain = bench.chain(TWO)
    with pytest.raises(EngineFault, match=r"^Stage 'rewrite': The engine broke as ordered\."):
        await run(chain)
    assert (bench.first.pages_used, bench.second.pages_used) == (0, 0)


async def test_a_piece_that_fails_is_told_at_once_though_the_stage_before_stands_still() -> None:
    bench = Bench(FakeEngine(script=says("One. Two. Three.")))

    def stall(request: GenerateRequest) -> Sequence[int]:
        bench.first.hold.clear()
        return echo(request)

    bench.second = FakeEngine(script=stall, fault=Fault(0, 3))
    chain = bench.chain(TWO)
    with pytest.raises(EngineFault, match=r"^Stage 'rewrite': The engine broke as ordered\."):
        await within(run(chain), 60.0, lambda: AssertionError("the fault was not told"))
    assert (bench.first.pages_used, bench.second.pages_used) == (0, 0)


async def test_a_chain_that_must_end_says_so() -> None:
    bench = Bench()
    bench.first.hold.clear()
    chain = bench.chain(TWO)
    chain.start()
    await until(lambda: bench.first.open)
    chain.fail(ShuttingDown("The service is shutting down."))
    with pytest.raises(ShuttingDown):
        await chain.receive()
    await chain.aclose()
    assert bench.first.pages_used == 0


async def test_a_deadline_holds_for_all_stages_together() -> None:
    bench = Bench(FakeEngine(script=says("One. Two."), delay_s=0.02))
    with pytest.raises(DeadlineExceeded):
        await run(bench.chain(TWO, deadline_s=0.05))


@pytest.mark.parametrize(
    ("given", "told"),
    [({}, "'input.topic' is missing"), ({"topic": "x", "colour": "red"}, "'input.colour' is no input")],
)
def test_inputs_are_checked_before_anything_runs(given: dict[str, str], told: str) -> None:
    with pytest.raises(InvalidRequest, match=told):
        Bench().chain(TWO, input=given)


# --- long texts ------------------------------------------------------------------------------------------------------------

LONG = (
    HEAD
    + """
[[stages]]
name = "read"
kind = "generate"
model = "first"
over = "topic"
each = "tokens"
tokens = 60
input = { prompt = "again: ${part}" }
options = { max_tokens = 40 }

[[stages]]
name = "answer"
kind = "generate"
model = "second"
over = "read"
each = "tokens"
fold = true
input = { prompt = "again: ${part}" }
options = { max_tokens = 30 }
"""
)


async def test_a_text_beyond_the_context_is_read_in_pieces_and_put_together() -> None:
    document = " ".join(f"Sentence {number} of many." for number in range(60))
    bench = Bench(FakeEngine(script=says("A short note.")), FakeEngine(script=says("Less.")), context=256)
    chain = bench.chain(LONG, document)
    pieces = await run(chain)
    read = [prompt_of(request).removeprefix("again: ") for request in bench.first.requests]
    assert "".join(read).replace(" ", "") == document.replace(" ", "")
    assert all(len(part) <= 60 for part in read)
    assert all(len(request.prompt) + 30 <= 256 for request in bench.second.requests)
    assert len(bench.second.requests) > 2
    assert chain.output("answer").text == "Less."
    kept = [one for one in pieces if one.stage == "answer" and not one.draft]
    assert "".join(one.piece.text for one in kept) == "Less."
    assert {one.part for one in pieces if one.draft} == set(range(len(bench.second.requests) - 1))


async def test_notes_that_do_not_get_shorter_are_given_up() -> None:
    bench = Bench(FakeEngine(script=says("x" * 40)), FakeEngine(script=says("y" * 30)), context=100)
    with pytest.raises(ContextLengthExceeded, match=r"'answer': .* does not get short enough"):
        await run(bench.chain(LONG.replace("max_tokens = 30", "max_tokens = 36"), "Some words. " * 80))


async def test_a_context_without_room_for_a_piece_is_refused() -> None:
    bench = Bench(context=64)
    with pytest.raises(InvalidRequest, match="has no room for a piece of text"):
        await run(bench.chain(LONG))


async def test_an_empty_text_is_one_empty_piece() -> None:
    bench = Bench(FakeEngine(script=says("Nothing.")), FakeEngine(script=says("Less.")))
    chain = bench.chain(LONG, "")
    await run(chain)
    assert chain.output("answer").text == "Less."
    assert len(bench.first.requests) == 1
