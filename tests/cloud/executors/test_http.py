"""The http executor against a server that misbehaves, and against a real one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest

from edgewise.cloud.executors.breaker import BreakerRules
from edgewise.cloud.executors.http import HttpExecutor
from edgewise.cloud.executors.protocol import Order, Produced
from edgewise.cloud.executors.upstream import HttpTimings
from edgewise.core.errors import (
    ConfigError,
    ContextLengthExceeded,
    DeadlineExceeded,
    EngineUnavailable,
    InvalidRequest,
    LinkLost,
    ModelNotFound,
    QueueFull,
    UnsupportedField,
)
from edgewise.core.metrics import Metrics
from edgewise.wire.messages import DiffuseWork, GenerateWork
from tests.fakes.misbehaving_upstream import (
    PIECES,
    Act,
    MisbehavingUpstream,
    answers,
    counts,
    half_closes,
    misbehaving_upstream,
    piece,
    resets,
    says,
    sends,
    stream_head,
    usage,
)

QUICK = HttpTimings(list_s=600.0, list_again_s=0.01, pause_s=0.01, longest_pause_s=1.5, first_s=20.0, silence_s=20.0)
TEXT = "".join(PIECES)


@asynccontextmanager
async def executor(
    upstream: MisbehavingUpstream, timings: HttpTimings = QUICK, **options: Any
) -> AsyncIterator[HttpExecutor]:
    made = HttpExecutor(upstream.url, "sk-up", timings=timings, **options)
    made.start()
    try:
        await made.capabilities()
        yield made
    finally:
        await made.stop()


def order(text: str = "", **fields: Any) -> Order:
    sampling = {"max_tokens": 20, "temperature": 0.0, "stop_token_ids": [1]} | fields.pop("sampling", {})
    work = GenerateWork(model="m", text="prompt: ", sampling=sampling, **fields.pop("work", {}))
    return Order(job="j", attempt=1, work=work, text=text, **fields)


async def read(made: HttpExecutor, asked: Order) -> list[Produced]:
    return [produced async for produced in made.run(asked)]


def text_of(produced: list[Produced]) -> str:
    assert all(one.count == len(one.text or "") for one in produced)
    return "".join(one.text or "" for one in produced)


async def until(condition: Callable[[], bool]) -> None:
    """Bounded by the test's own time limit."""
    while True:
        if condition():
            return
        await asyncio.sleep(0.01)


async def test_text_finish_and_usage_come_back_and_the_models_are_listed() -> None:
    async with misbehaving_upstream() as upstream, executor(upstream) as made:
        produced = await read(made, order())
        (capability,) = await made.capabilities()
    assert text_of(produced) == TEXT
    assert [one.finish for one in produced] == [None, None, None, "stop"]
    facts = produced[-1].facts
    assert facts is not None
    assert (facts["prompt_tokens"], facts["completion_tokens"], facts["cached_tokens"]) == (7, 3, 2)
    assert facts["upstream"]["model"] == "m-as-served"
    assert (capability.model, capability.reads, capability.kind) == ("m", "text", "generate")
    assert capability.speed is not None
    (body,) = upstream.bodies
    assert (body["model"], body["prompt"], body["max_tokens"], body["stream"]) == ("m", "prompt: ", 20, True)


@pytest.mark.parametrize("said", ["length", "stop"])
async def test_a_finish_reason_is_ours(said: str) -> None:
    async with misbehaving_upstream() as upstream, executor(upstream) as made:
        upstream.acts = [says("a", finish=said)]
        assert (await read(made, order()))[-1].finish == said


async def test_log_probabilities_name_the_drawn_text_first() -> None:
    logprobs = {"tokens": ["a"], "token_logprobs": [-0.5], "top_logprobs": [{"b": -1.0, "a": -0.5}]}
    async with misbehaving_upstream() as upstream, executor(upstream) as made:
        upstream.acts = [sends(stream_head(), piece("a", "stop", logprobs=logprobs), b"data: [DONE]\n\n")]
        produced = await read(made, order(sampling={"top_logprobs": 2}))
    assert produced[0].logprobs == ([-0.5, [["a", -0.5], ["b", -1.0]]],)
    assert upstream.bodies[0]["logprobs"] == 2


BEFORE: dict[str, Act] = {
    "500": answers(500, {"error": {"message": "boom"}}),
    "503": answers(503, {"error": {"message": "starting", "code": "engine_unavailable"}}),
    "429": answers(429, {"error": {"message": "slow down"}}, retry_after="1"),
    "a page that is no stream": sends(stream_head(), b"<html>", b"</html>"),
    "an event that is no JSON": sends(stream_head(), b"data: {nonsense\n\n"),
    "an event that is no completion": sends(stream_head(), b"data: [1, 2]\n\n"),
    "choices that are none": sends(stream_head(), b'data: {"choices": 7}\n\n'),
    "no HTTP": sends(b"SSH-2.0-OpenSSH_9.2\r\n"),
    "an immediate end": sends(),
    "a reset": resets(),
    "a half-closed connection": half_closes(stream_head()),
    "an error event": sends(stream_head(), b'data: {"error": {"code": "engine_unavailable", "message": "no"}}\n\n'),
    "an aborted answer": sends(stream_head(), piece("", "abort")),
}


@pytest.mark.parametrize("trouble", BEFORE)
async def test_before_the_first_piece_it_is_tried_again(trouble: str) -> None:
    async with misbehaving_upstream() as upstream, executor(upstream) as made:
        upstream.acts = [BEFORE[trouble]]
        produced = await read(made, order())
    assert text_of(produced) == TEXT
    assert produced[-1].facts is not None
    assert produced[-1].facts["upstream"]["tries"] == 2
    assert upstream.bodies[0] == upstream.bodies[1]


AFTER: dict[str, Act] = {
    "the end of the connection": sends(stream_head(), piece("one ")),
    "[DONE] without a finish": sends(stream_head(), piece("one "), b"data: [DONE]\n\n"),
    "half an event": sends(stream_head(), piece("one "), piece("two ")[:20]),
    "a reset": resets(stream_head(), piece("one ")),
    "a half-closed connection": half_closes(stream_head(), piece("one ")),
    "garbage": sends(stream_head(), piece("one "), b"data: {{{\n\n"),
    "an error event": sends(stream_head(), piece("one "), b'data: {"error": {"message": "out of luck"}}\n\n'),
}


@pytest.mark.parametrize("trouble", AFTER)
async def test_after_the_first_piece_it_is_the_next_attempts_work(trouble: str) -> None:
    """What came is delivered, the error is retryable, and nothing is asked again behind the job table's back."""
    async with misbehaving_upstream() as upstream, executor(upstream) as made:
        upstream.acts = [AFTER[trouble]]
        stream = made.run(order())
        assert (await anext(stream)).text == "one "
        with pytest.raises((LinkLost, EngineUnavailable)) as broke:
            await anext(stream)
    assert broke.value.retryable
    assert len(upstream.bodies) == 1


async def test_an_answer_whose_account_is_lost_has_ended_all_the_same() -> None:
    async with misbehaving_upstream() as upstream, executor(upstream) as made:
        upstream.acts = [resets(stream_head(), piece("all", "stop"))]
        produced = await read(made, order())
    assert text_of(produced) == "all"
    assert produced[-1].finish == "stop"
    assert produced[-1].facts is not None
    assert produced[-1].facts["upstream"]["usage"] == "the server told none"


@pytest.mark.parametrize(
    ("act", "error"),
    [
        (answers(400, {"error": {"message": "bad prompt"}}), InvalidRequest),
        (answers(400, {"error": {"message": "maximum context length is 10 tokens"}}), ContextLengthExceeded),
        (answers(404, {"error": {"message": "no such model"}}), ModelNotFound),
        (answers(401, {"error": {"message": "who are you"}}), ConfigError),
        (answers(418, "tea"), InvalidRequest),
    ],
)
async def test_what_no_repetition_mends_is_raised_at_once(act: Act, error: type[Exception]) -> None:
    async with misbehaving_upstream() as upstream, executor(upstream) as made:
        upstream.acts = [act]
        with pytest.raises(error) as refused:
            await read(made, order())
        assert type(refused.value) is error
        assert len(upstream.bodies) == 1
        assert made.breaker_state == "closed"


async def test_a_pause_longer_than_ours_goes_back_to_the_job_table() -> None:
    async with misbehaving_upstream() as upstream, executor(upstream) as made:
        upstream.acts = [answers(429, {"error": {"message": "later"}}, retry_after="30")]
        with pytest.raises(QueueFull) as full:
            await read(made, order())
    assert full.value.retry_after_s == 30.0
    assert len(upstream.bodies) == 1


async def test_tries_end() -> None:
    async with misbehaving_upstream() as upstream, executor(upstream, breaker=BreakerRules(failures=99)) as made:
        upstream.default = answers(500, {})
        with pytest.raises(EngineUnavailable):
            await read(made, order())
    assert len(upstream.bodies) == QUICK.tries


@pytest.mark.parametrize("comments", [False, True])
async def test_a_server_that_falls_silent_is_left(comments: bool) -> None:
    """Comments keep a connection alive; they are no answer."""
    quick = HttpTimings(list_s=600.0, first_s=20.0, silence_s=0.3)
    async with misbehaving_upstream() as upstream, executor(upstream, quick) as made:
        upstream.acts = [upstream.waits(piece("one "), comments=comments)]
        with pytest.raises(LinkLost, match="sent nothing for"):
            await read(made, order())
        await upstream.gone.wait()


async def test_the_deadline_of_the_job_ends_the_waiting() -> None:
    async with misbehaving_upstream() as upstream, executor(upstream) as made:
        upstream.acts = [upstream.waits()]
        with pytest.raises(DeadlineExceeded):
            await read(made, order(deadline_s=0.3))
        assert made.breaker_state == "closed"


async def test_closing_the_iterator_leaves_the_server() -> None:
    async with misbehaving_upstream() as upstream, executor(upstream) as made:
        upstream.acts = [upstream.waits(piece("one "))]
        async with aclosing(made.run(order())) as stream:
            assert (await anext(stream)).text == "one "
        await upstream.gone.wait()


# --- going on ---------------------------------------------------------------------------------------------------------------


async def test_it_goes_on_after_the_text_of_the_log_within_what_is_left_of_the_limit() -> None:
    async with misbehaving_upstream() as upstream, executor(upstream) as made:
        upstream.acts = [counts(7), counts(12), says("three", prompt_tokens=12)]
        produced = await read(made, order("one two ", sampling={"max_tokens": 8, "frequency_penalty": 0.5}))
    assert [body["prompt"] for body in upstream.bodies] == ["prompt: ", "prompt: one two ", "prompt: one two "]
    assert upstream.bodies[2]["max_tokens"] == 3
    facts = produced[-1].facts
    assert facts is not None
    assert (facts["prompt_tokens"], facts["completion_tokens"]) == (7, 6)
    assert facts["upstream"]["resumed_at"] == len("one two ")
    assert "frequency_penalty" in facts["upstream"]["not_honoured"]


async def test_a_log_that_holds_the_whole_answer_is_ended() -> None:
    async with misbehaving_upstream() as upstream, executor(upstream) as made:
        upstream.acts = [counts(7), counts(11)]
        (only,) = await read(made, order("one two ", sampling={"max_tokens": 4}))
    assert (only.count, only.finish) == (0, "length")
    assert only.facts is not None
    assert (only.facts["prompt_tokens"], only.facts["completion_tokens"]) == (7, 4)


async def test_a_server_that_counts_nothing_gets_the_whole_limit_and_the_receipt_says_so() -> None:
    whole = answers(200, {"choices": [{"text": "x"}]})
    async with misbehaving_upstream() as upstream, executor(upstream) as made:
        upstream.acts = [whole, whole]
        produced = await read(made, order("one two "))
    assert upstream.bodies[2]["max_tokens"] == 20
    assert produced[-1].facts is not None
    assert "max_tokens" in produced[-1].facts["upstream"]["not_honoured"]


# --- the breaker ------------------------------------------------------------------------------------------------------------


async def test_a_server_that_keeps_failing_is_left_alone_until_a_probe_succeeds() -> None:
    metrics = Metrics(process=False)
    rules = BreakerRules(failures=3, pause_s=0.2, longest_s=0.2)
    async with misbehaving_upstream() as upstream, executor(upstream, breaker=rules, metrics=metrics) as made:
        upstream.default = upstream.whole = upstream.listing = answers(500, {})
        with pytest.raises(EngineUnavailable):
            await read(made, order())
        assert made.breaker_state == "open"
        asked = len(upstream.bodies)
        assert asked == 3
        assert await made.capabilities() == ()
        assert metrics.value("edgewise_cloud_upstream_breaker", {"state": "open"}) == 1.0
        assert metrics.value("edgewise_cloud_upstream_requests_total", {"outcome": "failed"}) == 3.0
        upstream.listing = MisbehavingUpstream().listing
        await until(lambda: len(upstream.bodies) > asked)
        assert (upstream.bodies[asked]["max_tokens"], upstream.bodies[asked]["prompt"]) == (1, "1")  # nobody's request
        upstream.default, upstream.whole = says(), counts(1)
        await until(lambda: made.breaker_state == "closed")
        assert text_of(await read(made, order())) == TEXT
        assert metrics.value("edgewise_cloud_upstream_breaker", {"state": "open"}) == 0.0
        assert len(await made.capabilities()) == 1


async def test_a_server_that_is_not_there_has_no_models_and_is_found_when_it_comes() -> None:
    async with misbehaving_upstream() as upstream:
        address, upstream.url = upstream.url, "http://127.0.0.1:9/v1"
        slow = HttpTimings(connect_s=0.2, list_again_s=0.01)
        async with executor(upstream, slow, breaker=BreakerRules(failures=2, pause_s=0.05, longest_s=0.05)) as made:
            await until(lambda: made.breaker_state == "open")
            assert await made.capabilities() == ()
            made._upstream._url = address
            await until(lambda: made.breaker_state == "closed")
            assert len(await made.capabilities()) == 1


# --- what is asked ----------------------------------------------------------------------------------------------------------


async def test_what_cannot_be_done_by_such_a_server_is_refused() -> None:
    async with misbehaving_upstream() as upstream, executor(upstream) as made:
        with pytest.raises(UnsupportedField, match="grammar"):
            await read(made, order(work={"constraint": "{}"}))
        with pytest.raises(UnsupportedField, match="diffuse"):
            await read(made, Order(job="j", attempt=1, work=DiffuseWork(model="m")))
        with pytest.raises(InvalidRequest, match="text"):
            await read(made, Order(job="j", attempt=1, work=GenerateWork(model="m", prompt=(1,))))
        assert upstream.bodies == []


async def test_a_line_without_an_end_is_not_kept() -> None:
    async with misbehaving_upstream() as upstream, executor(upstream) as made:
        upstream.acts = [sends(stream_head(), *([b"data: " + b"x" * 2**20] * 6))]
        assert text_of(await read(made, order())) == TEXT


async def test_usage_without_a_count_of_the_cache() -> None:
    async with misbehaving_upstream() as upstream, executor(upstream) as made:
        upstream.acts = [sends(stream_head(), piece("a", "stop"), usage(3, 1), b"data: [DONE]\n\n")]
        facts = (await read(made, order()))[-1].facts
    assert facts is not None
    assert (facts["prompt_tokens"], facts["cached_tokens"]) == (3, 0)
