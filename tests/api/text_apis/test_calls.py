"""Calls of functions in both forms, from the pieces that the pipeline hands out."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

from edgewise.api.messages_api.writer import MessagesWriter
from edgewise.api.parse import Caller
from edgewise.api.responses_api.items import conversation_of
from edgewise.api.responses_api.routes import prepare_response
from edgewise.api.writers import Writer
from edgewise.models.templates.tool_styles import ToolSupport
from edgewise.pipeline.plan import LocalPlanner
from edgewise.pipeline.run import Run, start_run
from edgewise.pipeline.text import TextChunk, TextFinish, ToolCallDelta
from tests.api.harness import Api, listening, make_api
from tests.fakes.engine import FakeEngine
from tests.fakes.serving import fake_model, says
from tests.fakes.text import TagTemplate


def piece(text: str = "", *calls: ToolCallDelta, finish: TextFinish | None = None) -> TextChunk:
    return TextChunk(sequence=0, offset=0, text=text, tool_calls=calls, finish=finish)


PIECES = [
    piece("I look."),
    piece("", ToolCallDelta(index=0, id="c1", name="look", arguments='{"at"')),
    piece("", ToolCallDelta(index=0, arguments=': "x"}'), ToolCallDelta(index=1, id="c2", name="see")),
    piece("", ToolCallDelta(index=1, arguments="{}"), finish="tool_calls"),
]
CUT = [*PIECES[:2], piece("", finish="length")]


async def make(form: str) -> tuple[Writer, Run]:
    api = make_api(FakeEngine(script=says("x")))
    caller = Caller(request_id="req_r", salt="s", timeout_s=None, max_sequences=1)
    prepared = await prepare_response(api.deps, {"model": "tiny", "input": "hi", "store": False}, caller)
    run = await start_run(prepared.task, LocalPlanner())
    async for _ in run.chunks():
        continue
    api.deps.state.close()
    return (prepared.write(run, 1) if form == "responses" else MessagesWriter(run)), run


async def whole(form: str, pieces: list[TextChunk]) -> dict[str, Any]:
    writer, _ = await make(form)
    for one in pieces:
        writer.gather(one)
    await writer.settle()
    return writer.body()


async def events(form: str, pieces: list[TextChunk]) -> list[dict[str, Any]]:
    writer, _ = await make(form)
    sent = [*writer.opening()]
    for one in pieces:
        sent += writer.piece(one)
    await writer.settle()
    sent += writer.closing()
    return [json.loads(event.decode().split("data: ", 1)[1]) for event in sent]


async def test_responses_items() -> None:
    body = await whole("responses", PIECES)
    assert [item["type"] for item in body["output"]] == ["message", "function_call", "function_call"]
    calls = [(item["call_id"], item["name"], item["arguments"], item["status"]) for item in body["output"][1:]]
    assert calls == [("c1", "look", '{"at": "x"}', "completed"), ("c2", "see", "{}", "completed")]
    assert body["status"] == "completed"
    (message,) = conversation_of([], body["output"]).messages
    assert [call["id"] for call in message["tool_calls"]] == ["c1", "c2"]


async def test_responses_events() -> None:
    sent = await events("responses", PIECES)
    deltas: dict[int, str] = {}
    for event in sent:
        if event["type"] == "response.function_call_arguments.delta":
            deltas[event["output_index"]] = deltas.get(event["output_index"], "") + event["delta"]
    done = {
        event["output_index"]: event["arguments"]
        for event in sent
        if event["type"] == "response.function_call_arguments.done"
    }
    assert deltas == done == {1: '{"at": "x"}', 2: "{}"}
    added = [event["item"] for event in sent if event["type"] == "response.output_item.added"]
    finished = [event["item"] for event in sent if event["type"] == "response.output_item.done"]
    assert [item["id"] for item in added] == [item["id"] for item in finished]
    assert finished == sent[-1]["response"]["output"]


async def test_messages_blocks() -> None:
    body = await whole("messages", PIECES)
    assert body["stop_reason"] == "tool_use"
    assert body["content"] == [
        {"type": "text", "text": "I look."},
        {"type": "tool_use", "id": "c1", "name": "look", "input": {"at": "x"}},
        {"type": "tool_use", "id": "c2", "name": "see", "input": {}},
    ]


async def test_messages_events() -> None:
    sent = [event for event in await events("messages", PIECES) if event["type"].startswith("content_block")]
    starts = [event["content_block"] for event in sent if event["type"] == "content_block_start"]
    assert [block.get("name") for block in starts] == [None, "look", "see"]
    assert all(block["input"] == {} for block in starts[1:])
    assert [event["index"] for event in sent if event["type"] == "content_block_stop"] == [0, 1, 2]
    partial = "".join(
        event["delta"]["partial_json"] for event in sent if event["index"] == 1 and event["type"].endswith("delta")
    )
    assert partial == '{"at": "x"}'


@pytest.mark.parametrize("form", ["responses", "messages"])
async def test_a_call_that_is_cut_off_is_never_taken_for_a_whole_one(form: str) -> None:
    body = await whole(form, CUT)
    if form == "messages":
        assert [block["type"] for block in body["content"]] == ["text"]
        assert body["stop_reason"] == "max_tokens" or body["stop_reason"] == "model_context_window_exceeded"
        assert "'look'" in body["edgewise"]["warnings"][-1]
        return
    assert (body["status"], body["output"][1]["status"]) == ("incomplete", "incomplete")
    assert "tool_calls" not in conversation_of([], body["output"]).messages[0]


TWO = (
    'Let me see.\n<tool_call>\n{"name": "weather", "arguments": {"city": "Kö}ln"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>'
)
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
CALLS = [("weather", {"city": "Kö}ln"}), ("clock", {})]


def calling() -> Api:
    """A service whose model calls two functions at once, in the way of its chat template."""
    engine = FakeEngine(script=says(TWO))
    return make_api(engine, model=fake_model(engine, template=TagTemplate(ToolSupport("hermes"))))


async def test_two_calls_through_the_official_clients() -> None:
    import anthropic  # here: it takes seconds

    api = calling()
    async with listening(api) as url:
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
            tools: Any = [
                {"type": "function", "name": "weather", "parameters": CITY, "strict": False},
                {"type": "function", "name": "clock", "parameters": None, "strict": False},
            ]
            async with client.responses.stream(model="tiny", input="hi", tools=tools) as stream:
                final = await stream.get_final_response()
            items = [item for item in final.output if item.type == "function_call"]
            assert [(item.name, json.loads(item.arguments)) for item in items] == CALLS
            outputs: Any = [
                {"type": "function_call_output", "call_id": item.call_id, "output": "seen"} for item in items
            ]
            await client.responses.create(model="tiny", input=outputs, previous_response_id=final.id, tools=tools)
            prompt = bytes(id for id in api.engine.requests[-1].prompt if id < 256).decode()
            assert prompt.index("Kö}ln") < prompt.index("seen")
        async with anthropic.AsyncAnthropic(base_url=url, api_key="none", max_retries=0) as claude:
            own: Any = [
                {"name": "weather", "input_schema": CITY},
                {"name": "clock", "input_schema": {"type": "object"}},
            ]
            asked: Any = {"model": "tiny", "max_tokens": 400, "messages": [{"role": "user", "content": "hi"}]}
            asked["extra_body"] = {"seed": 3}  # ids of calls follow the seed
            async with claude.messages.stream(**asked, tools=own) as events:
                message = await events.get_final_message()
            blocks = [block for block in message.content if block.type == "tool_use"]
            assert [(block.name, block.input) for block in blocks] == CALLS
            assert message.stop_reason == "tool_use"
            body = await claude.messages.create(**asked, tools=own)
            assert [block.to_dict() for block in body.content] == [block.to_dict() for block in message.content]
    api.deps.state.close()
