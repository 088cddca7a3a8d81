"""/v1/completions, whole and streamed."""

from __future__ import annotations

from typing import Any

import pytest

from edgewise.api.deps import Limits
from tests.api.harness import COMPLETIONS, content_of, make_api, prompt
from tests.fakes.engine import FakeEngine
from tests.fakes.serving import says


async def test_the_whole_answer() -> None:
    body = await make_api(FakeEngine(script=says(" Paris"))).answer(COMPLETIONS, prompt())
    assert body["object"] == "text_completion"
    assert body["id"].startswith("cmpl-")
    assert body["choices"] == [{"index": 0, "text": " Paris", "logprobs": None, "finish_reason": "stop"}]
    assert body["usage"]["prompt_tokens"] == 2
    assert "edgewise" in body


async def test_the_stream() -> None:
    api = make_api(FakeEngine(script=says(" Paris")))
    events = await api.events(COMPLETIONS, prompt(stream_options={"include_usage": True}))
    assert content_of(events) == " Paris"
    assert [choice["finish_reason"] for event in events for choice in event["choices"]] == [None] * 6 + ["stop"]
    assert {event["object"] for event in events} == {"text_completion"}
    assert events[-1]["choices"] == []
    assert events[-1]["usage"]["total_tokens"] == 9


@pytest.mark.parametrize(
    ("given", "tokens"),
    [
        ("ab", [(97, 98)]),
        (["ab", "c"], [(97, 98), (99,)]),
        ([97, 98], [(97, 98)]),
        ([[97, 98], [99]], [(97, 98), (99,)]),
    ],
)
async def test_the_four_forms_of_a_prompt(given: Any, tokens: list[tuple[int, ...]]) -> None:
    api = make_api()
    body = await api.answer(COMPLETIONS, prompt(prompt=given, return_token_ids=True, echo=True))
    assert [request.prompt for request in api.engine.requests] == tokens
    assert [choice["prompt_token_ids"] for choice in body["choices"]] == [list(ids) for ids in tokens]
    assert body["usage"]["prompt_tokens"] == sum(len(ids) for ids in tokens)
    for choice, ids in zip(body["choices"], tokens, strict=True):
        assert choice["text"].startswith(bytes(ids).decode())


@pytest.mark.parametrize("given", [None, 5, [], [""], [[]], ["a", 1], [1, "a"], [[1], "a"], [True], [1.0], {}, ""])
async def test_any_other_prompt_is_refused(given: Any) -> None:
    error = await make_api().refusal(COMPLETIONS, prompt(prompt=given))
    assert error["param"] == "prompt"


async def test_a_prompt_is_required() -> None:
    error = await make_api().refusal(COMPLETIONS, {"model": "tiny"})
    assert (error["code"], error["param"]) == ("missing_required_parameter", "prompt")


async def test_answers_to_several_prompts_are_in_order_and_those_of_single_requests() -> None:
    api = make_api()
    together = await api.answer(COMPLETIONS, prompt(prompt=["a", "b"], n=2, seed=3))
    texts = [choice["text"] for choice in together["choices"]]
    alone = [await api.answer(COMPLETIONS, prompt(prompt=one, n=2, seed=3)) for one in ("a", "b")]
    assert texts == [choice["text"] for body in alone for choice in body["choices"]]
    assert len(set(texts)) == 4
    assert together["usage"]["prompt_tokens"] == 2
    events = await api.events(COMPLETIONS, prompt(prompt=["a", "b"], n=2, seed=3))
    assert [content_of(events, index) for index in range(4)] == texts


async def test_too_many_answers_in_one_request_are_refused() -> None:
    error = await make_api(limits=Limits(max_sequences=8)).refusal(COMPLETIONS, prompt(prompt=["a", "b", "c"], n=3))
    assert error["param"] == "prompt"
    assert "9" in error["message"]
    error = await make_api(limits=Limits(max_sequences=8)).refusal(COMPLETIONS, prompt(n=9))
    assert (error["param"], error["code"]) == ("n", "invalid_value")


@pytest.mark.parametrize("stream", [False, True])
async def test_echo_puts_the_prompt_before_the_answer(stream: bool) -> None:
    api = make_api(FakeEngine(script=says("llo")))
    body = prompt(prompt="he", echo=True, stop=["e"])  # the stop string is not looked for in the prompt
    if stream:
        assert content_of(await api.events(COMPLETIONS, body)) == "hello"
    else:
        assert (await api.answer(COMPLETIONS, body))["choices"][0]["text"] == "hello"


async def test_echo_with_log_probabilities_is_refused_and_the_service_lives() -> None:
    api = make_api()
    error = await api.refusal(COMPLETIONS, prompt(echo=True, logprobs=1))
    assert (error["param"], error["code"]) == ("echo", "unsupported_parameter")
    error = await api.refusal(COMPLETIONS, prompt(echo=True, max_tokens=0, logprobs=1))
    assert error["param"] == "max_tokens"
    await api.answer(COMPLETIONS, prompt())


async def test_log_probabilities() -> None:
    body = await make_api(FakeEngine(script=says("aé"))).answer(COMPLETIONS, prompt(logprobs=2))
    logprobs = body["choices"][0]["logprobs"]
    assert logprobs["tokens"] == ["a", "bytes:\\xc3", "bytes:\\xa9"]
    assert logprobs["text_offset"] == [0, 1, 1]
    assert logprobs["token_logprobs"] == [-0.25, -0.265625, -0.28125]
    assert logprobs["top_logprobs"][0] == {"a": -0.25, "b": -1.25}
    only = await make_api(FakeEngine(script=says("a"))).answer(COMPLETIONS, prompt(logprobs=0))
    assert only["choices"][0]["logprobs"]["top_logprobs"] == [{"a": -0.25}]


@pytest.mark.parametrize("chunk_tokens", [1, 3, 50])
async def test_streamed_log_probabilities_are_those_of_the_body(chunk_tokens: int) -> None:
    api = make_api(FakeEngine(script=says("a 👍 b stop"), chunk_tokens=chunk_tokens))
    body = prompt(logprobs=3, stop="stop")
    whole = (await api.answer(COMPLETIONS, body))["choices"][0]
    choices = [event["choices"][0] for event in await api.events(COMPLETIONS, body)]
    for name in whole["logprobs"]:
        streamed = [item for choice in choices if choice["logprobs"] for item in choice["logprobs"][name]]
        assert streamed == whole["logprobs"][name]
    assert "".join(choice["text"] for choice in choices) == whole["text"] == "a 👍 b "


@pytest.mark.parametrize("logprobs", [True, -1, 6, 1_000_000, "1"])
async def test_wrong_log_probabilities(logprobs: Any) -> None:
    error = await make_api().refusal(COMPLETIONS, prompt(logprobs=logprobs))
    assert error["param"] == "logprobs"


@pytest.mark.parametrize("ids", [[512], [-1], [2**70], [5, 10**400]])
async def test_token_ids_outside_the_vocabulary_are_refused(ids: list[int]) -> None:
    error = await make_api().refusal(COMPLETIONS, prompt(prompt=ids))
    assert error["param"] == "prompt"
    assert len(error["message"]) < 300


async def test_a_prompt_over_the_context_is_refused_naming_the_numbers() -> None:
    error = await make_api(FakeEngine(max_context=50)).refusal(COMPLETIONS, prompt(prompt="x" * 60, max_tokens=5))
    assert error["code"] == "context_length_exceeded"
    assert all(number in error["message"] for number in ("50 tokens", "60 tokens", " 5 "))
