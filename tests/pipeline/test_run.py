from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from edgewise.core.errors import (
    Cancelled,
    DeadlineExceeded,
    EdgewiseError,
    EngineFault,
    InvalidRequest,
    QueueFull,
    ShuttingDown,
)
from edgewise.engine.request import GenerateRequest, Priority, TokenChunk
from edgewise.pipeline.plan import Decision, Demand, Errand, LocalPlanner, Plan
from edgewise.pipeline.receipts import GenerateReceipt
from edgewise.pipeline.run import Run, start_run
from edgewise.pipeline.seeds import sequence_seed
from edgewise.pipeline.task import Sampling, Task, TextInput
from tests.fakes.engine import FakeEngine, FakeStream, Fault
from tests.fakes.serving import DIGEST, fake_model, says
from tests.fakes.text import EOS


def task(engine: FakeEngine, *prompts: str, **fields: Any) -> Task:
    return Task(id="req_1", model=fake_model(engine), input=TextInput(prompts or ("hi",)), **fields)


async def start(engine: FakeEngine, *prompts: str, **fields: Any) -> Run:
    return await start_run(task(engine, *prompts, **fields), LocalPlanner())


async def texts(run: Run) -> list[str]:
    """The finished answers; checks that offsets are those of the text."""
    answers: dict[int, str] = {}
    async for chunk in run.chunks():
        before = answers.get(chunk.sequence, "")
        assert chunk.offset == len(before)
        answers[chunk.sequence] = before + chunk.text
    await run.aclose()
    return [answers[index] for index in sorted(answers)]


async def test_the_answer_comes_in_pieces_and_the_stage_is_accounted_for() -> None:
    engine = FakeEngine(script=says("hello"))
    run = await start(engine, sampling=Sampling(seed=5), ignored=("user",))
    assert await texts(run) == ["hello"]
    assert run.done
    receipt = run.receipt().to_dict()
    (stage,) = receipt.pop("stages")
    assert receipt.pop("total_ms") >= stage["ttft_ms"]
    assert receipt.pop("costs") == {"up_bytes": 0, "down_bytes": 0, "price": 0.0, "joules": None, "hedged": False}
    (planned,) = receipt.pop("plan")["stages"]
    assert (planned["where"], planned["why"], planned["predicted"]) == ("local", stage["why"], None)
    assert receipt == {
        "request_id": "req_1",
        "model": "tiny",
        "digest": DIGEST,
        "priority": "interactive",
        "privacy": "private",
        "seed": 5,
        "sampling": {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0},
        "ignored": ("user",),
        "warnings": (),
        "media": (),
        "speech": None,
    }
    assert stage["precision"] == {"dtype": "float32", "kv_dtype": "int8", "quantize": "none"}
    assert (stage["stage"], stage["where"], stage["cached_tokens"], stage["restarts"]) == ("generate", "local", 0, 0)
    assert (stage["queued_ms"], stage["prefill_ms"], stage["decode_ms"]) == (1.0, 2.0, 3.0)
    assert stage["why"]
    assert stage["ttft_ms"] > 0
    assert stage["numeric_class"] == "fake/float32/int8/none/cpu"
    usage = run.usage()
    assert (usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens) == (2, 6, 0)


async def test_sampling_reaches_the_engine_with_the_models_end_tokens() -> None:
    engine = FakeEngine(script=says("x"))
    sampling = Sampling(max_tokens=9, temperature=0.5, top_k=99_999, top_p=0.9, stop_token_ids=(7,), top_logprobs=2)
    await texts(await start(engine, sampling=sampling, salt="s", deadline_s=3.0, priority=Priority.BULK))
    (request,) = engine.requests
    assert (request.salt, request.deadline_s, request.priority, request.prompt) == (
        "s",
        3.0,
        Priority.BULK,
        tuple(b"hi"),
    )
    drawn = request.sampling
    assert (drawn.max_tokens, drawn.temperature, drawn.top_p, drawn.top_logprobs) == (9, 0.5, 0.9, 2)
    assert drawn.top_k == 512  # clamped to the vocabulary
    assert drawn.stop_token_ids == (7, EOS)


async def test_ignore_eos_leaves_the_models_end_tokens_out() -> None:
    engine = FakeEngine(script=says("x"))
    assert await texts(await start(engine, sampling=Sampling(ignore_eos=True))) == ["x"]
    assert engine.requests[0].sampling.stop_token_ids == ()


async def test_every_answer_has_a_seed_of_its_own_and_equal_seeds_give_equal_answers() -> None:
    engine = FakeEngine()
    first = await texts(await start(engine, "a", "b", n=3, sampling=Sampling(seed=11)))
    again = await texts(await start(engine, "a", "b", n=3, sampling=Sampling(seed=11)))
    assert first == again
    assert len(set(first)) == 6
    seeds = [request.sampling.seed for request in engine.requests[:6]]
    assert seeds == [11, sequence_seed(11, 1), sequence_seed(11, 2)] * 2
    alone = await texts(await start(engine, "b", sampling=Sampling(seed=11)))
    assert alone == [first[3]]


async def test_a_seed_is_drawn_once_and_reported() -> None:
    engine = FakeEngine()
    run = await start(engine, n=2)
    answer = await texts(run)
    again = await start(engine, n=2, sampling=Sampling(seed=run.receipt().seed))
    assert await texts(again) == answer
    other = await start(engine, n=2)
    assert other.seed != run.seed
    await other.aclose()


async def test_a_stop_string_ends_the_engines_work_in_the_turn_in_which_it_is_found() -> None:
    engine = FakeEngine(script=says("one two three"), chunk_tokens=2)
    run = await start(engine, stop=(" tw",))
    assert await texts(run) == ["one"]
    assert engine.aborted == 1
    assert engine.pages_used == 0
    assert run.usage().completion_tokens == 6
    assert run.usage().cached_tokens == 0
    stage = run.receipt().stages[0]
    assert isinstance(stage, GenerateReceipt)
    assert (stage.queued_ms, stage.prefill_ms, stage.restarts) == (1.0, 2.0, 0)
    assert stage.decode_ms is not None
    assert stage.decode_ms != 3.0  # measured here: the engine's last word never came


async def test_all_sequences_are_queued_or_none() -> None:
    engine = FakeEngine(max_open=2)
    with pytest.raises(QueueFull):
        await start(engine, n=3)
    assert engine.open == {}


async def test_a_bad_value_is_refused_before_anything_is_queued() -> None:
    engine = FakeEngine()
    with pytest.raises(InvalidRequest, match="logit_bias"):
        await start(engine, sampling=Sampling(logit_bias={99_999_999: 5.0}))
    assert engine.requests == []


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("engine_error", EngineFault),
        ("deadline_exceeded", DeadlineExceeded),
        ("shutting_down", ShuttingDown),
        ("unheard_of", EngineFault),
    ],
)
async def test_the_engines_error_has_its_class_after_the_text_before_it(code: str, kind: type[EdgewiseError]) -> None:
    engine = FakeEngine(script=says("hello"), fault=Fault(0, 3, code, "It broke."))
    run = await start(engine)
    received: list[str] = []

    for _ in range(3):
        chunk = await run.receive()
        assert chunk is not None
        received.append(chunk.text)
    with pytest.raises(kind, match=r"It broke\."):
        await run.receive()
    assert "".join(received) == "hel"
    await run.aclose()
    assert engine.open == {}


async def test_a_fault_of_one_sequence_ends_all() -> None:
    engine = FakeEngine(fault=Fault(1, 3))
    run = await start(engine, n=3)
    with pytest.raises(EngineFault):
        await texts(run)
    await run.aclose()
    assert engine.open == {}


@pytest.mark.parametrize("turns", [0, 1, 2, 5])
async def test_closing_frees_every_page_whenever_it_comes(turns: int) -> None:
    engine = FakeEngine()
    run = await start(engine, n=4)
    assert engine.pages_used == 4
    for _ in range(turns):
        await asyncio.sleep(0)
    await run.aclose()
    await run.aclose()
    assert engine.pages_used == 0
    assert len([one for one in asyncio.all_tasks() if one.get_name().startswith("req_1/")]) == 0


async def test_a_cancelled_start_leaves_nothing_queued() -> None:
    stuck = asyncio.Event()

    class Slow(FakeEngine):
        async def submit(self, request: GenerateRequest) -> FakeStream:
            if self.requests:
                stuck.set()
                await asyncio.Event().wait()
            return await super().submit(request)

    engine = Slow()
    starting = asyncio.create_task(start(engine, n=2))
    await stuck.wait()
    assert engine.pages_used == 1
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert engine.open == {}


async def test_waiting_has_a_limit() -> None:
    engine = FakeEngine()
    engine.hold.clear()
    run = await start(engine)
    assert await run.receive(0.001) is None
    engine.hold.set()
    assert (await run.receive(30)) is not None
    await run.aclose()


async def test_a_run_can_be_ended_from_outside() -> None:
    engine = FakeEngine()
    run = await start(engine)
    first = await run.receive()
    run.fail(ShuttingDown("The service is shutting down."))
    assert first is not None
    with pytest.raises(ShuttingDown):
        await texts(run)
    await run.aclose()
    assert engine.pages_used == 0


class _Misbehaving(FakeEngine):
    """Hands out what it is told to, right or wrong."""

    chunks: Sequence[TokenChunk | Exception] = ()

    async def submit(self, request: GenerateRequest) -> FakeStream:
        stream = await super().submit(request)
        left = list(self.chunks)

        async def next_chunk() -> TokenChunk:
            if not left:
                raise StopAsyncIteration
            item = left.pop(0)
            if isinstance(item, Exception):
                raise item
            return item

        return _stream(stream, next_chunk)


def _stream(stream: FakeStream, next_chunk: Any) -> FakeStream:
    class Told(FakeStream):
        async def __anext__(self) -> TokenChunk:
            result: TokenChunk = await next_chunk()
            return result

    stream.__class__ = Told
    return stream


def _chunk(offset: int, *tokens: int) -> TokenChunk:
    return TokenChunk(request_id="x", offset=offset, tokens=tokens)


@pytest.mark.parametrize(
    ("chunks", "kind", "message"),
    [
        ([_chunk(0, 65), _chunk(2, 66)], EngineFault, "token 2 where 1"),
        ([_chunk(0, 65), _chunk(0, 65)], EngineFault, "token 0 where 1"),
        ([_chunk(0, 65)], EngineFault, "without saying why"),
        ([_chunk(0, 65), RuntimeError("secret detail")], EngineFault, "RuntimeError"),
        ([_chunk(0, 65), TokenChunk(request_id="x", offset=1, tokens=(), finish="cancelled")], Cancelled, "cancelled"),
    ],
)
async def test_a_stream_that_breaks_its_promise_is_an_error_not_a_wrong_answer(
    chunks: Sequence[TokenChunk | Exception], kind: type[EdgewiseError], message: str
) -> None:
    engine = _Misbehaving()
    engine.chunks = chunks
    run = await start(engine)
    with pytest.raises(kind, match=message) as caught:
        await texts(run)
    assert "secret" not in caught.value.message
    await run.aclose()
    assert engine.open == {}


async def test_the_planners_engine_runs_the_stage_and_the_receipt_says_where_and_why() -> None:
    here, there = FakeEngine(), FakeEngine(script=says("from afar"))

    class Away(LocalPlanner):
        async def plan(self, errand: Errand, demands: Sequence[Demand]) -> Plan:
            (demand,) = demands
            return Plan((Decision(stage=demand.stage, where="cloud", reason="Because.", engine=there),))

    run = await start_run(task(here), Away())
    assert await texts(run) == ["from afar"]
    assert here.requests == []
    (stage,) = run.receipt().stages
    assert (stage.where, stage.why) == ("cloud", "Because.")


async def test_an_answer_cut_inside_a_character_says_so() -> None:
    run = await start(FakeEngine(script=says("é")), sampling=Sampling(max_tokens=1))
    assert await texts(run) == [""]
    assert run.receipt().warnings == ("Answer 0 ends inside a character: its first 1 bytes are not shown.",)


async def test_pace_is_observed_per_sequence() -> None:
    class Observer:
        first: list[float] = []  # noqa: RUF012 - one test, one observer
        later: list[tuple[float, ...]] = []  # noqa: RUF012

        def first_token(self, seconds: float, /) -> None:
            self.first.append(seconds)

        def next_tokens(self, gaps: Sequence[float], /) -> None:
            self.later.append(tuple(gaps))

    observer = Observer()
    run = await start_run(task(FakeEngine(script=says("12345"), chunk_tokens=2)), LocalPlanner(), observer=observer)
    await texts(run)
    assert len(observer.first) == 1
    assert [len(gaps) for gaps in observer.later] == [2, 2]
    assert repr(run) == "Run(req_1, parts=1, unfinished=0)"


def test_what_a_model_recommends_holds_where_the_caller_says_nothing() -> None:
    model = replace(fake_model(FakeEngine()), sampling={"temperature": 0.2, "top_p": 0.9, "top_k": 50})
    asked = Sampling(top_p=1.0, min_p=0.1)
    assert asked.effective(model) == {
        "temperature": 0.2,
        "top_k": 50,
        "top_p": 1.0,
        "min_p": 0.1,
        "repetition_penalty": 1.0,
    }
    drawn = asked.resolve(model, max_tokens=3, seed=1)
    assert (drawn.temperature, drawn.top_k, drawn.top_p, drawn.min_p) == (0.2, 50, 1.0, 0.1)
    assert Sampling(temperature=0.0).resolve(model, max_tokens=3, seed=1).temperature == 0.0


@pytest.mark.parametrize(
    ("fields", "whole"), [({}, False), ({"whole": True}, True), ({"whole": True, "stop": ("x",)}, False)]
)
async def test_engines_hear_whether_anybody_reads_before_the_end(fields: dict[str, Any], whole: bool) -> None:
    engine = FakeEngine(script=says("hello"))
    assert await texts(await start(engine, **fields)) == ["hello"]
    assert [request.whole for request in engine.requests] == [whole]
