"""/v1/messages: Anthropic's form in, out and in errors; stream and body say the same; the official client agrees."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from edgewise.api.messages_api.parse import messages_task
from edgewise.api.messages_api.schemas import IGNORED, REFUSED, MessagesBody
from edgewise.api.parse import Caller
from edgewise.api.schemas import validate
from edgewise.pipeline.task import ChatInput
from tests.api.harness import Api, listening, make_api, parse_named_events
from tests.api.test_auth import Keys, Record
from tests.fakes.engine import FakeEngine, Fault
from tests.fakes.serving import fake_model, says

ROUTE = "/v1/messages"
TEXT = "Paris 👩‍👩‍👧 é."
USER = [{"role": "user", "content": "hi"}]


@pytest.fixture
def api() -> Iterator[Api]:
    made = make_api(FakeEngine(script=says(TEXT)))
    yield made
    made.deps.state.close()


def ask(**fields: Any) -> dict[str, Any]:
    return {"model": "tiny", "max_tokens": 100, "messages": USER, **fields}


async def stream(api: Api, body: dict[str, Any]) -> list[dict[str, Any]]:
    response = await api.post(ROUTE, body | {"stream": True})
    assert response.status_code == 200, response.text
    return parse_named_events(response.text)


async def refusal(api: Api, body: dict[str, Any], status: int = 400, **named: Any) -> dict[str, Any]:
    """The error of a refused request, in Anthropic's shape."""
    before = len(api.engine.requests)
    response = await api.post(ROUTE, body, **named)
    assert response.status_code == status, response.text
    assert len(api.engine.requests) == before
    told = response.json()
    assert told.keys() == {"type", "error", "request_id"}
    assert told["type"] == "error"
    assert told["request_id"] == response.headers["x-request-id"]
    error: dict[str, Any] = told["error"]
    return error


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({}, "end_turn"),
        ({"max_tokens": 5}, "max_tokens"),
        ({"stop_sequences": ["zzz", "ris"]}, "stop_sequence"),
    ],
)
async def test_stream_and_body_say_the_same(api: Api, fields: dict[str, Any], reason: str) -> None:
    body = await api.answer(ROUTE, ask(**fields))
    events = await stream(api, ask(**fields))
    assert body["stop_reason"] == reason
    assert body["stop_sequence"] == ("ris" if reason == "stop_sequence" else None)
    kinds = [event["type"] for event in events]
    assert kinds[:3] == ["message_start", "ping", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert set(kinds[3:-3]) == {"content_block_delta"}
    text = "".join(event["delta"]["text"] for event in events[3:-3])
    assert body["content"] == [{"type": "text", "text": text}]
    ended = events[-2]
    assert ended["delta"] == {"stop_reason": body["stop_reason"], "stop_sequence": body["stop_sequence"]}
    assert ended["usage"] == body["usage"]
    assert events[0]["message"]["content"] == []
    assert events[-1]["edgewise"]["model"] == "tiny"


async def test_more_than_the_context_is_what_is_left_of_it() -> None:
    engine = FakeEngine(script=lambda request: [ord("a")] * 500)
    api = make_api(engine, model=fake_model(engine, max_context=64))
    answer = await api.answer(ROUTE, ask(max_tokens=4000))
    assert answer["stop_reason"] == "model_context_window_exceeded"
    assert answer["usage"]["input_tokens"] + answer["usage"]["output_tokens"] == 64
    long = [{"role": "user", "content": "x" * 64}]
    assert (await refusal(api, ask(messages=long)))["code"] == "context_length_exceeded"
    api.deps.state.close()


def test_blocks_become_messages() -> None:
    turns: list[dict[str, Any]] = [
        {"role": "user", "content": [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "t1", "name": "look", "input": {"at": "é"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "seen"}]},
                {"type": "text", "text": "And?"},
            ],
        },
    ]
    tool = {"name": "look", "description": "d", "input_schema": {"type": "object"}, "cache_control": {}}
    body = ask(
        messages=turns,
        system=[{"type": "text", "text": "Be"}, {"type": "text", "text": "brief."}],
        tools=[tool],
        tool_choice={"type": "any", "disable_parallel_tool_use": True},
        output_config={"format": {"type": "json_schema", "schema": {"type": "object"}}},
    )
    caller = Caller(request_id="r", salt="s", timeout_s=None, max_sequences=1)
    task, _ = messages_task(validate(MessagesBody, body), fake_model(), caller)
    assert isinstance(task.input, ChatInput)
    call = {"name": "look", "arguments": '{"at": "é"}'}
    assert task.input.messages == (
        {"role": "system", "content": "Be\nbrief."},
        {"role": "user", "content": "a"},
        {
            "role": "assistant",
            "content": "I look.",
            "tool_calls": [{"id": "t1", "type": "function", "function": call}],
        },
        {"role": "tool", "tool_call_id": "t1", "content": "seen"},
        {"role": "user", "content": "And?"},
    )
    function = {"name": "look", "description": "d", "parameters": {"type": "object"}}
    assert task.input.tools == ({"type": "function", "function": function},)
    assert (task.tool_choice.mode, task.tool_choice.parallel) == ("required", False)
    assert task.answer_format is not None
    assert task.ignored == ("content[].cache_control", "messages[].content[].thinking", "tools[].cache_control")


@pytest.mark.parametrize("name", sorted(IGNORED))
async def test_ignored_fields_are_listed(api: Api, name: str) -> None:
    assert (await api.answer(ROUTE, ask(**{name: "x"})))["edgewise"]["ignored"] == [name]


@pytest.mark.parametrize("name", sorted(REFUSED))
async def test_refused_fields_are_named(api: Api, name: str) -> None:
    error = await refusal(api, ask(**{name: {"some": "thing"}}))
    assert (error["type"], error["code"], error["param"]) == ("invalid_request_error", "unsupported_parameter", name)


def show(source: dict[str, Any]) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": [{"type": "image", "source": source}]}]}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "assistant", "content": "The answer is"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": []}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "messages[0].content[0].source"),
        (show({"type": "file", "file_id": "x"}), "messages[0].content[0].source.file_id"),
        (show({"type": "url", "url": "file:///etc/hostname"}), "messages[0].content[0].source.url"),
        (show({"type": "base64", "media_type": "image/png", "data": "eA=="}), "messages[0].content[0].source.data"),
        (show({"type": "base64", "media_type": "png", "data": "eA=="}), "messages[0].content[0].source.media_type"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_use"}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]}, "messages[0].content[0].tool_use_id"),
        ({"system": 5}, "system"),
        ({"tools": [{"name": "f"}]}, "tools[0].input_schema"),
        ({"tools": [{"type": "web_search_20250305", "name": "w"}]}, "tools[0].type"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tool_choice": {"type": "best"}}, "tool_choice.type"),
        ({"output_config": {"effort": "high"}}, "output_config.effort"),
        ({"stop_sequences": [""]}, "stop_sequences[0]"),
        ({"temperature": 1.5}, "temperature"),
        ({"stop": ["x"]}, "stop"),
    ],
)
async def test_mistakes_are_named(api: Api, fields: dict[str, Any], param: str) -> None:
    assert (await refusal(api, ask(**fields)))["param"] == param


async def test_versions(api: Api) -> None:
    for version in ("2023-06-01", "2026-10-21"):
        answer = await api.post(ROUTE, ask(), headers={"anthropic-version": version})
        assert answer.json()["edgewise"]["warnings"] == []
    later = await api.post(ROUTE, ask(), headers={"anthropic-version": "2031-01-01", "anthropic-beta": "x"})
    assert "2031-01-01" in later.json()["edgewise"]["warnings"][0]
    assert later.json()["edgewise"]["ignored"] == ["anthropic-beta"]
    for version in ("2023-01-01", "latest"):
        error = await refusal(api, ask(), headers={"anthropic-version": version})
        assert error["param"] == "anthropic-version"


async def test_errors_of_every_layer_have_their_form() -> None:
    api = make_api(keys=Keys({"k": Record("1", "k", frozenset({"inference"}))}), base="http://192.0.2.7")
    assert (await refusal(api, ask(), 401))["type"] == "authentication_error"
    assert (await refusal(api, ask(), 401, headers={"x-api-key": "wrong"}))["type"] == "authentication_error"
    api.headers["x-api-key"] = "k"
    assert (await api.answer(ROUTE, ask()))["type"] == "message"
    assert (await refusal(api, ask(model="nope"), 404))["type"] == "not_found_error"
    assert (await api.get(ROUTE)).json()["error"]["code"] == "method_not_allowed"
    assert (await api.post(f"{ROUTE}/nothing", {})).json()["type"] == "error"
    api.deps.requests.begin_drain()
    assert (await refusal(api, ask(), 503))["type"] == "overloaded_error"
    api.deps.state.close()


async def test_a_fault_in_a_stream_is_an_error_event() -> None:
    api = make_api(FakeEngine(script=says("hello"), fault=Fault(0, 2, message="It broke.")))
    events = await stream(api, ask())
    assert events[-1]["error"]["message"] == "It broke."
    assert events[-1]["type"] == "error"
    api.deps.state.close()


async def test_counting_asks_no_engine(api: Api) -> None:
    counted = (await api.post(f"{ROUTE}/count_tokens", {"model": "tiny", "messages": USER})).json()
    assert api.engine.requests == []
    answer = await api.answer(ROUTE, ask())
    assert counted == {"input_tokens": answer["usage"]["input_tokens"]}


async def test_the_official_client(api: Api) -> None:
    import anthropic  # here: it takes seconds

    async with (
        listening(api) as url,
        anthropic.AsyncAnthropic(base_url=url, api_key="none", max_retries=0) as client,
    ):
        asked: Any = {"model": "tiny", "max_tokens": 50, "messages": USER}
        made = await client.messages.create(**asked, system="Be kind.")
        assert [block.text for block in made.content if block.type == "text"] == [TEXT]
        async with client.messages.stream(**asked, stop_sequences=["ris"]) as events:
            text = "".join([part async for part in events.text_stream])
            final = await events.get_final_message()
        assert text == "Pa"
        assert (final.stop_reason, final.stop_sequence) == ("stop_sequence", "ris")
        assert final.usage.output_tokens == 5
        assert (await client.messages.count_tokens(model="tiny", messages=asked["messages"])).input_tokens > 0
        with pytest.raises(anthropic.NotFoundError):
            await client.messages.create(**asked | {"model": "nope"})
        with pytest.raises(anthropic.BadRequestError, match="thinking"):
            await client.messages.create(**asked, thinking={"type": "enabled", "budget_tokens": 1024})
        with pytest.raises(anthropic.AuthenticationError):
            await client.with_options(api_key="wrong").messages.create(**asked)
