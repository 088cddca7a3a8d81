"""Text and calls keep their order however tokens arrive and whether hooks hold text back; a cut call has not ended."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from edgewise.models.templates.tool_styles import ToolSupport
from edgewise.pipeline.hooks.hooks import Hooks
from edgewise.pipeline.hooks.load import load_hooks
from tests.api.harness import CHAT, Api, hello, make_api, parse_events
from tests.fakes.engine import FakeEngine
from tests.fakes.serving import fake_model, says
from tests.fakes.text import TagTemplate

CALL = '<tool_call>\n{"name": "look", "arguments": {"at": "x"}}\n</tool_call>'
TEXT = f"I look. {CALL} Then é {CALL} done."
SCHEMA = {"type": "object", "properties": {"at": {"type": "string"}}}
RESPONSES = {"model": "tiny", "input": "hi", "tools": [{"type": "function", "name": "look", "parameters": SCHEMA}]}
MESSAGES = hello(max_tokens=999, tools=[{"name": "look", "input_schema": SCHEMA}])
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": SCHEMA}}]

grouped = pytest.mark.parametrize("chunk_tokens", [1, 7, 1000])
hooked = pytest.mark.parametrize("hooks", [False, True])


def api_saying(text: str, chunk_tokens: int, folder: Path | None = None) -> Api:
    engine = FakeEngine(script=says(text), chunk_tokens=chunk_tokens)
    hooks = Hooks()
    if folder is not None:
        (folder / "words.txt").write_text("/zz[0-9]+zz/\n")
        hooks = Hooks(load_hooks(["word-filter"], ["word-filter.file=words.txt"], folder))
    return make_api(engine, model=fake_model(engine, template=TagTemplate(ToolSupport("hermes"))), hooks=hooks)


async def stream(api: Api, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    text = (await api.post(path, body | {"stream": True})).text
    return [json.loads(block.split("data: ", 1)[1]) for block in text.strip().split("\n\n")]


@hooked
@grouped
@pytest.mark.parametrize("logprobs", [False, True])
async def test_items_of_a_response(tmp_path: Path, chunk_tokens: int, hooks: bool, logprobs: bool) -> None:
    api = api_saying(TEXT, chunk_tokens, tmp_path if hooks else None)
    asked = RESPONSES | ({"top_logprobs": 0} if logprobs else {})
    body = await api.answer("/v1/responses", asked)
    last = (await stream(api, "/v1/responses", asked))[-1]["response"]
    for output in (body["output"], last["output"]):
        told = [item["arguments"] if item["type"] == "function_call" else item["content"][0]["text"] for item in output]
        assert told == ["I look.", '{"at": "x"}', " Then é", '{"at": "x"}', " done."]
        assert bool(output[0]["content"][0]["logprobs"]) is logprobs
    api.deps.state.close()


@hooked
@grouped
async def test_blocks_of_a_message(tmp_path: Path, chunk_tokens: int, hooks: bool) -> None:
    api = api_saying(TEXT, chunk_tokens, tmp_path if hooks else None)
    body = await api.answer("/v1/messages", MESSAGES)
    assert [block["type"] for block in body["content"]] == ["text", "tool_use", "text", "tool_use", "text"]
    assert [block["input"] for block in body["content"] if block["type"] == "tool_use"] == [{"at": "x"}] * 2
    events = await stream(api, "/v1/messages", MESSAGES)
    kinds = {"text": "text_delta", "tool_use": "input_json_delta"}
    starts = [event["content_block"]["type"] for event in events if event["type"] == "content_block_start"]
    assert starts == [block["type"] for block in body["content"]]
    for event in events:
        if event["type"] == "content_block_delta":
            assert event["delta"]["type"] == kinds[starts[event["index"]]]
    api.deps.state.close()


@grouped
async def test_a_stop_string_inside_a_call_does_not_end_it(chunk_tokens: int) -> None:
    api = api_saying(f"{CALL}{CALL}", chunk_tokens)
    asked = hello(tools=TOOLS, stop=['"x'])
    (choice,) = (await api.answer(CHAT, asked))["choices"]
    assert (choice["finish_reason"], choice["message"]["tool_calls"][0]["function"]["arguments"]) == ("stop", '{"at": ')
    events = parse_events((await api.post(CHAT, asked | {"stream": True})).text)
    reasons = [one["choices"][0]["finish_reason"] for one in events if isinstance(one, dict) and one["choices"]]
    assert reasons[-1] == "stop"
    (choice,) = (await api.answer(CHAT, hello(tools=TOOLS)))["choices"]
    assert choice["finish_reason"] == "tool_calls"
    api.deps.state.close()


@grouped
async def test_a_call_that_is_cut_before_its_arguments_is_no_call_without_any(chunk_tokens: int) -> None:
    text = '<tool_call>\n{"name": "look", '
    api = api_saying(text + '"arguments": {}}', chunk_tokens)
    body = await api.answer("/v1/messages", MESSAGES | {"max_tokens": len(text)})
    assert (body["content"], body["stop_reason"]) == ([], "max_tokens")
    response = await api.answer("/v1/responses", RESPONSES | {"stop_token_ids": [ord("g")]})
    assert [(item["type"], item["status"]) for item in response["output"]] == [("function_call", "incomplete")]
    api.deps.state.close()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("system", [{"type": []}]),
        ("messages", [{"role": "user", "content": [{"type": {}}]}]),
        ("tool_choice", {"type": ["auto"]}),
        ("tool_choice", {"type": {}}),
    ],
)
async def test_a_type_that_is_no_text_is_refused_by_name(field: str, value: Any) -> None:
    api = api_saying("x", 1)
    for path in ("/v1/messages", "/v1/messages/count_tokens"):
        response = await api.post(path, MESSAGES | {field: value})
        assert response.status_code == 400
        assert response.json()["error"]["param"].startswith(field)
    api.deps.state.close()
