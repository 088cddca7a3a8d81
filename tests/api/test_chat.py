"""/v1/chat/completions, whole and streamed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from edgewise.api.deps import Limits
from tests.api.harness import CHAT, content_of, hello, make_api, parse_events
from tests.fakes.engine import FakeEngine, Fault
from tests.fakes.serving import DIGEST, fake_model, says
from tests.fakes.text import ByteTokenizer

FAMILY = "👩‍👩‍👧 é 日本 \u2028\x85 end"


async def test_the_whole_answer() -> None:
    body = await make_api(FakeEngine(script=says("Paris."))).answer(CHAT, hello(seed=3))
    assert body["object"] == "chat.completion"
    assert body["id"].startswith("chatcmpl-")
    assert body["model"] == "tiny"
    assert body["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Paris.", "refusal": None, "annotations": []},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ]
    assert body["usage"] == {
        "prompt_tokens": 21,
        "completion_tokens": 7,
        "total_tokens": 28,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    receipt = body["edgewise"]
    assert (receipt["model"], receipt["digest"], receipt["seed"], receipt["ignored"]) == ("tiny", DIGEST, 3, [])
    assert receipt["request_id"].removeprefix("req_") == body["id"].removeprefix("chatcmpl-")
    assert [stage["stage"] for stage in receipt["stages"]] == ["generate"]


async def test_the_stream_opens_with_the_role_and_ends_with_one_finish_reason_and_the_receipt() -> None:
    events = await make_api(FakeEngine(script=says("Paris."))).events(CHAT, hello())
    deltas = [event["choices"][0]["delta"] for event in events]
    assert deltas[0] == {"role": "assistant", "content": "", "refusal": None}
    assert deltas[-1] == {}
    assert all(delta.keys() == {"content"} for delta in deltas[1:-1])
    reasons = [event["choices"][0]["finish_reason"] for event in events]
    assert reasons == [None] * (len(events) - 1) + ["stop"]
    assert content_of(events) == "Paris."
    assert len({(event["id"], event["created"], event["object"], event["model"]) for event in events}) == 1
    assert events[0]["object"] == "chat.completion.chunk"
    assert ["edgewise" in event for event in events] == [False] * (len(events) - 1) + [True]
    assert not any("usage" in event for event in events)


async def test_the_usage_event_comes_last_and_is_null_before() -> None:
    api = make_api(FakeEngine(script=says("Paris.")))
    events = await api.events(CHAT, hello(stream_options={"include_usage": True, "include_obfuscation": False}))
    assert [event["usage"] for event in events[:-1]] == [None] * (len(events) - 1)
    assert events[-1]["choices"] == []
    assert events[-1]["usage"]["completion_tokens"] == 7
    assert events[-1]["edgewise"]["ignored"] == ["stream_options.include_obfuscation"]
    assert not any("edgewise" in event for event in events[:-1])
    assert events[-2]["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize("chunk_tokens", [1, 2, 3, 7, 100])
async def test_stream_and_body_agree_on_text_tokens_and_log_probabilities(chunk_tokens: int) -> None:
    body = hello(logprobs=True, top_logprobs=3, return_token_ids=True, stop=["end"], seed=1)
    api = make_api(FakeEngine(script=says(FAMILY), chunk_tokens=chunk_tokens))
    whole = (await api.answer(CHAT, body))["choices"][0]
    events = await api.events(CHAT, body)
    choices = [event["choices"][0] for event in events]
    assert content_of(events) == whole["message"]["content"] == FAMILY.removesuffix("end")
    streamed = [entry for choice in choices if choice["logprobs"] for entry in choice["logprobs"]["content"]]
    assert streamed == whole["logprobs"]["content"]
    assert [id for choice in choices for id in choice.get("token_ids", [])] == whole["token_ids"]
    assert [choice["prompt_token_ids"] for choice in choices if "prompt_token_ids" in choice] == [
        whole["prompt_token_ids"]
    ]
    for choice in choices:
        if choice["logprobs"]:  # every piece's entries are those of its text
            entries = choice["logprobs"]["content"]
            assert bytes(byte for entry in entries for byte in entry["bytes"]).decode() == choice["delta"]["content"]


async def test_no_chunk_has_part_of_a_character_or_a_raw_line_break_of_any_kind() -> None:
    response = await make_api(FakeEngine(script=says(FAMILY))).post(CHAT, hello(stream=True))
    assert "\ufffd" not in response.text
    assert response.text.splitlines() == response.text.split("\n")[:-1]
    events = [event for event in parse_events(response.text) if isinstance(event, dict)]
    assert content_of(events) == FAMILY


async def test_chosen_log_probabilities_alone() -> None:
    for fields in ({"logprobs": True}, {"logprobs": True, "top_logprobs": 0}):
        choice = (await make_api(FakeEngine(script=says("ab"))).answer(CHAT, hello(**fields)))["choices"][0]
        assert choice["logprobs"] == {
            "content": [
                {"token": "a", "logprob": -0.25, "bytes": [97], "top_logprobs": []},
                {"token": "b", "logprob": -0.265625, "bytes": [98], "top_logprobs": []},
            ],
            "refusal": None,
        }


async def test_partial_characters_in_log_probabilities_are_written_as_bytes() -> None:
    body = await make_api(FakeEngine(script=says("é"))).answer(CHAT, hello(logprobs=True))
    entries = body["choices"][0]["logprobs"]["content"]
    assert [(entry["token"], entry["bytes"]) for entry in entries] == [("\\xc3", [0xC3]), ("\\xa9", [0xA9])]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_stop_string_across_token_borders_ends_the_answer(stream: bool) -> None:
    pieces = [b"Hello wo", b"rld, go", b"od b", b"ye now"]
    tokenizer = ByteTokenizer(pieces)
    engine = FakeEngine(script=lambda request: [259, 260, 261, 262])
    api = make_api(engine, model=fake_model(engine, tokenizer=tokenizer))
    body = hello(stop=["good bye", "never"], ignore_eos=True)
    if stream:
        events = await api.events(CHAT, body)
        text, finish = content_of(events), events[-1]["choices"][0]["finish_reason"]
    else:
        choice = (await api.answer(CHAT, body))["choices"][0]
        text, finish = choice["message"]["content"], choice["finish_reason"]
    assert (text, finish) == ("Hello world, ", "stop")
    assert engine.pages_used == 0


async def test_more_answers_than_the_service_can_hold_are_no_matter_of_trying_again() -> None:
    error = await make_api(limits=Limits(max_sequences=4)).refusal(CHAT, hello(n=5))
    assert (error["param"], error["code"]) == ("n", "invalid_value")
    assert "at most 4" in error["message"]


async def test_several_answers_are_told_apart_in_body_and_stream() -> None:
    api = make_api()
    body = await api.answer(CHAT, hello(n=3, seed=5))
    texts = [choice["message"]["content"] for choice in body["choices"]]
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2]
    assert len(set(texts)) == 3
    events = await api.events(CHAT, hello(n=3, seed=5))
    assert [content_of(events, index) for index in range(3)] == texts
    finishes = [choice for event in events for choice in event["choices"] if choice["finish_reason"]]
    assert sorted(choice["index"] for choice in finishes) == [0, 1, 2]
    assert "edgewise" in events[-1]


async def test_parallel_requests_get_their_own_answers() -> None:
    engine = FakeEngine()
    api = make_api(engine)
    bodies = [hello(messages=[{"role": "user", "content": f"question {index}"}], temperature=0) for index in range(16)]
    one_by_one = [(await api.answer(CHAT, body))["choices"][0]["message"]["content"] for body in bodies]
    together = await asyncio.gather(*(api.answer(CHAT, body) for body in bodies))
    assert [body["choices"][0]["message"]["content"] for body in together] == one_by_one
    assert len(set(one_by_one)) == 16


async def test_the_seed_of_an_answer_repeats_it() -> None:
    api = make_api()
    first = await api.answer(CHAT, hello())
    again = await api.answer(CHAT, hello(seed=first["edgewise"]["seed"]))
    assert again["choices"] == first["choices"]
    assert again["system_fingerprint"] == first["system_fingerprint"]


async def test_the_answer_fills_the_context_unless_told_otherwise() -> None:
    engine = FakeEngine(max_context=100)
    await make_api(engine).answer(CHAT, hello())
    assert engine.requests[-1].sampling.max_tokens == 79
    for name in ("max_tokens", "max_completion_tokens"):
        body = await make_api(engine).answer(CHAT, hello(**{name: 2}))
        assert body["choices"][0]["finish_reason"] == "length"
        assert body["usage"]["completion_tokens"] == 2


@pytest.mark.parametrize("stream", [False, True])
async def test_a_prompt_over_the_context_is_refused_before_any_byte(stream: bool) -> None:
    api = make_api(FakeEngine(max_context=100))
    body = hello(messages=[{"role": "user", "content": "x" * 1_000_000}], stream=stream)
    error = await api.refusal(CHAT, body)
    assert error["code"] == "context_length_exceeded"
    assert "100 tokens" in error["message"]
    assert "1000019 tokens" in error["message"]


async def test_a_fault_before_the_first_byte_is_a_plain_error() -> None:
    api = make_api(FakeEngine(fault=Fault(0, 0, "engine_error", "It broke.")))
    response = await api.post(CHAT, hello())
    assert response.status_code == 500
    assert response.json()["error"] == {
        "message": "It broke.",
        "type": "server_error",
        "param": None,
        "code": "engine_error",
    }


async def test_a_fault_in_a_stream_is_an_error_event_and_then_the_end() -> None:
    api = make_api(FakeEngine(script=says("hello"), fault=Fault(0, 2, "engine_error", "It broke.")))
    response = await api.post(CHAT, hello(stream=True))
    events: list[Any] = parse_events(response.text)
    assert content_of(events[:-1]) == "he"
    assert events[-1] == {
        "error": {"message": "It broke.", "type": "server_error", "param": None, "code": "engine_error"}
    }
    assert api.deps.requests.show()["finished"][0]["error"] == "engine_error"


async def test_a_silent_engine_gets_comments_written_meanwhile() -> None:
    engine = FakeEngine(script=says("x"))
    engine.hold.clear()
    api = make_api(engine, limits=Limits(keepalive_s=0.01))
    asking = asyncio.create_task(api.post(CHAT, hello(stream=True)))
    for _ in range(20):  # turns, each later than the next comment is due: however late they come, comments come between
        await asyncio.sleep(0.02)
    engine.hold.set()
    response = await asking
    assert response.text.count(": keep-alive\n\n") >= 2
    assert content_of([event for event in parse_events(response.text) if isinstance(event, dict)]) == "x"
