"""Tools in a chat: what the model is shown, what becomes of its calls, in a stream and in a body."""

from __future__ import annotations

import json
from typing import Any

import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from edgewise.models.templates.tool_styles import ToolSupport
from tests.api.harness import CHAT, hello, make_api
from tests.fakes.engine import FakeEngine
from tests.fakes.serving import fake_model, says
from tests.fakes.text import TagTemplate

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Tells the weather.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
CLOCK = {"type": "function", "function": {"name": "clock"}}
TWO = (
    'Let me see.\n<tool_call>\n{"name": "weather", "arguments": {"city": "Kö}ln"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>'
)


def api_saying(text: str, **fields: Any) -> Any:
    engine = FakeEngine(script=says(text), chunk_tokens=fields.pop("chunk_tokens", 1))
    return make_api(engine, model=fake_model(engine, template=TagTemplate(ToolSupport("hermes"))))


def gathered(events: list[dict[str, Any]]) -> tuple[str, list[list[str]], str]:
    """Content, calls as [id, name, arguments] and finish reason of a stream; checks what every piece must have."""
    content, finish = "", ""
    calls: list[list[str]] = []
    for event in events:
        ChatCompletionChunk.model_validate(event)
        for choice in event["choices"]:
            content += choice["delta"].get("content") or ""
            for piece in choice["delta"].get("tool_calls", ()):
                if piece["index"] == len(calls):
                    assert piece["type"] == "function"
                    calls.append([piece["id"], piece["function"]["name"], ""])
                else:
                    assert piece.keys() == {"index", "function"}
                    assert piece["function"].keys() == {"arguments"}
                calls[piece["index"]][2] += piece["function"]["arguments"]
            finish = choice["finish_reason"] or finish
    return content, calls, finish


@pytest.mark.parametrize("chunk_tokens", [1, 7, 1000])
async def test_two_calls_keep_their_index_name_and_arguments(chunk_tokens: int) -> None:
    api = api_saying(TWO, chunk_tokens=chunk_tokens)
    body = hello(tools=[WEATHER, CLOCK], seed=3)
    content, calls, finish = gathered(await api.events(CHAT, body))
    assert (content, finish) == ("Let me see.", "tool_calls")
    assert [call[1:] for call in calls] == [["weather", '{"city": "Kö}ln"}'], ["clock", "{}"]]
    whole = await api.answer(CHAT, body)
    ChatCompletion.model_validate(whole)
    (choice,) = whole["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] == content
    told = [
        [call["id"], call["function"]["name"], call["function"]["arguments"]]
        for call in choice["message"]["tool_calls"]
    ]
    assert told == calls
    assert len({call[0] for call in calls}) == 2


async def test_tools_stream_and_log_probabilities_go_together() -> None:
    api = api_saying(TWO)
    body = hello(tools=[WEATHER, CLOCK], logprobs=True, top_logprobs=2, stream_options={"include_usage": True})
    events = await api.events(CHAT, body)
    _, calls, _ = gathered(events)
    tokens = [
        token
        for event in events
        for choice in event["choices"]
        if choice["logprobs"]
        for token in choice["logprobs"]["content"]
    ]
    assert len(calls) == 2
    assert b"".join(bytes(token["bytes"]) for token in tokens).decode() == TWO
    del body["stream_options"]
    whole = await api.answer(CHAT, body)
    assert whole["choices"][0]["logprobs"]["content"] == tokens


async def test_a_call_alone_has_no_content() -> None:
    api = api_saying('<tool_call>\n{"name": "clock", "arguments": {"zone": 1}}\n</tool_call>\n')
    whole = await api.answer(CHAT, hello(tools=[CLOCK]))
    assert whole["choices"][0]["message"]["content"] is None
    assert whole["choices"][0]["message"]["tool_calls"][0]["function"] == {"name": "clock", "arguments": '{"zone": 1}'}


async def test_unknown_functions_and_broken_calls_are_text() -> None:
    text = '<tool_call>\n{"name": "bomb", "arguments": {}}\n</tool_call> and <tool_call> so on'
    whole = await api_saying(text).answer(CHAT, hello(tools=[CLOCK]))
    (choice,) = whole["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == (text, "stop")
    assert "tool_calls" not in choice["message"]


async def test_without_parallel_calls_the_first_one_ends_the_answer() -> None:
    api = api_saying(TWO)
    body = hello(tools=[WEATHER, CLOCK], parallel_tool_calls=False)
    content, calls, finish = gathered(await api.events(CHAT, body))
    assert (content, [call[1] for call in calls], finish) == ("Let me see.", ["weather"], "tool_calls")
    assert [
        call["function"]["name"] for call in (await api.answer(CHAT, body))["choices"][0]["message"]["tool_calls"]
    ] == ["weather"]
    assert not api.engine.open


async def test_tool_choice_none_leaves_text_and_prompt_alone() -> None:
    api = api_saying(TWO)
    whole = await api.answer(CHAT, hello(tools=[WEATHER], tool_choice="none"))
    assert whole["choices"][0]["message"]["content"] == TWO
    plain = await api.answer(CHAT, hello())
    assert whole["usage"]["prompt_tokens"] == plain["usage"]["prompt_tokens"]


async def test_a_model_without_tools_in_its_template_is_told_of_them_in_a_text() -> None:
    engine = FakeEngine(script=says(TWO))
    api = make_api(engine)
    whole = await api.answer(CHAT, hello(tools=[WEATHER, CLOCK]))
    assert len(whole["choices"][0]["message"]["tool_calls"]) == 2
    assert whole["edgewise"]["warnings"] == [
        "The model's chat template knows no tools: they are described to it in a text of this service."
    ]
    prompt = bytes(token for token in engine.requests[0].prompt if token < 256).decode()
    assert '"name": "weather", "description": "Tells the weather."' in prompt
    assert prompt.startswith("system\n")


async def test_results_and_earlier_calls_reach_the_model() -> None:
    engine = FakeEngine(script=says("ok"))
    call = {"id": "c1", "type": "function", "function": {"name": "clock", "arguments": '{"zone": "UTC"}'}}
    history = [
        {"role": "user", "content": "time?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "12:00", "tool_call_id": "c1"},
    ]
    await make_api(engine).answer(CHAT, hello(messages=history, tools=[CLOCK]))
    prompt = bytes(token for token in engine.requests[0].prompt if token < 256).decode()
    assert '<tool_call>\n{"name": "clock", "arguments": {"zone": "UTC"}}\n</tool_call>' in prompt
    assert "user\n<tool_response>\n12:00\n</tool_response>" in prompt


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
async def test_a_forced_call_is_a_grammar_in_the_engine(choice: Any) -> None:
    api = api_saying('<tool_call>\n{"name": "weather", "arguments": {"city": "x"}}\n</tool_call>')
    events = await api.events(CHAT, hello(tools=[WEATHER, CLOCK], tool_choice=choice))
    assert events[0]["choices"][0]["delta"]["content"] is None
    rules = json.loads(api.engine.requests[0].constraint or "{}")["grammars"][0]["lark_grammar"]
    assert "weather" in rules
    assert ("clock" in rules) == (choice == "required")


TOOL = {"type": "function", "function": {"name": "f"}}
REFUSALS: list[tuple[dict[str, Any], str, str]] = [
    ({"tools": {}}, "tools", "invalid_type"),
    ({"tools": [TOOL] * 2}, "tools[1].function.name", "invalid_value"),
    ({"tools": [TOOL] * 129}, "tools", "invalid_value"),
    ({"tools": [{"type": "custom", "custom": {"name": "f"}}]}, "tools[0].type", "unsupported_parameter"),
    ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name", "invalid_value"),
    ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name", "missing_required_parameter"),
    ({"tools": [{**TOOL, "x": 1}]}, "tools[0].x", "unknown_parameter"),
    (
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "array"}}}]},
        "tools[0].function.parameters.type",
        "invalid_value",
    ),
    ({"tool_choice": "required"}, "tool_choice", "invalid_value"),
    ({"tools": [TOOL], "tool_choice": "always"}, "tool_choice", "invalid_value"),
    (
        {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "g"}}},
        "tool_choice.function.name",
        "invalid_value",
    ),
    (
        {"tools": [TOOL], "tool_choice": {"type": "allowed_tools", "allowed_tools": {}}},
        "tool_choice.type",
        "unsupported_parameter",
    ),
    ({"functions": [{"name": "f"}]}, "functions", "unsupported_parameter"),
    ({"parallel_tool_calls": 1}, "parallel_tool_calls", "invalid_type"),
    (
        {
            "tools": [
                {
                    "type": "function",
                    "function": {
                        "name": "f",
                        "strict": True,
                        "parameters": {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}},
                    },
                }
            ]
        },
        "tools[0].function.parameters.properties.a.uniqueItems",
        "unsupported_parameter",
    ),
]


@pytest.mark.parametrize(("fields", "param", "code"), REFUSALS)
async def test_what_cannot_be_done_is_refused_by_name(fields: dict[str, Any], param: str, code: str) -> None:
    error = await make_api().refusal(CHAT, hello(**fields))
    assert (error["param"], error["code"]) == (param, code)


async def test_without_strict_a_schema_beyond_reach_is_a_warning() -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "not": {}}}}
    api = api_saying('<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>')
    whole = await api.answer(CHAT, hello(tools=[tool], tool_choice="required"))
    (warning,) = whole["edgewise"]["warnings"]
    assert "'f' are held to no more than a JSON object" in warning
    assert "'not'" in warning
