"""/v1/responses: what is honoured, ignored, refused and kept; stream and body say the same; the official client agrees."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_type_hints

import openai
import pytest
from openai.types.responses import Response as ClientResponse
from openai.types.responses import response_create_params

from edgewise.api.deps import Keeping
from edgewise.api.extensions import DRAWING
from edgewise.api.parse import Caller
from edgewise.api.responses_api.routes import prepare_response
from edgewise.api.responses_api.schemas import IGNORED, INCLUDE_IGNORED, REFUSED, ResponsesBody
from edgewise.pipeline.state import open_state
from edgewise.pipeline.task import ChatInput
from tests.api.harness import Api, error_of, listening, make_api, parse_named_events
from tests.api.test_auth import Keys, Record
from tests.fakes.engine import FakeEngine, Fault
from tests.fakes.serving import says
from tests.fakes.text import EOS
from tests.security.test_full_disk import fill

ROUTE = "/v1/responses"
TEXT = "Paris 👩‍👩‍👧 é."


@pytest.fixture
def api() -> Iterator[Api]:
    made = make_api(FakeEngine(script=says(TEXT)))
    yield made
    made.deps.state.close()


def ask(**fields: Any) -> dict[str, Any]:
    return {"model": "tiny", "input": "hi", **fields}


async def stream(api: Api, body: dict[str, Any]) -> list[dict[str, Any]]:
    """The events; checks their form, their numbers and that each is named as its data says."""
    response = await api.post(ROUTE, body | {"stream": True})
    assert response.status_code == 200, response.text
    events = parse_named_events(response.text)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    return events


def stable(response: dict[str, Any]) -> dict[str, Any]:
    """Without what differs from request to request."""
    left_out = {"id", "created_at", "edgewise"}
    output = [{name: value for name, value in item.items() if name != "id"} for item in response["output"]]
    return {name: value for name, value in response.items() if name not in left_out} | {"output": output}


def test_the_schema_has_every_field_of_the_document_and_the_extensions_only() -> None:
    kinds = (
        response_create_params.ResponseCreateParamsNonStreaming,
        response_create_params.ResponseCreateParamsStreaming,
    )
    document = {name for kind in kinds for name in get_type_hints(kind)}
    assert set(ResponsesBody.model_fields) == document | set(DRAWING)


@pytest.mark.parametrize("fields", [{}, {"max_output_tokens": 5}, {"include": ["message.output_text.logprobs"]}])
async def test_stream_and_body_say_the_same(api: Api, fields: dict[str, Any]) -> None:
    body = await api.answer(ROUTE, ask(**fields, seed=3))
    events = await stream(api, ask(**fields, seed=3))
    assert stable(events[-1]["response"]) == stable(body)
    deltas = [event["delta"] for event in events if event["type"] == "response.output_text.delta"]
    assert "".join(deltas) == body["output"][0]["content"][0]["text"]
    kinds = [event["type"].removeprefix("response.") for event in events]
    assert kinds[:4] == ["created", "in_progress", "output_item.added", "content_part.added"]
    ended = "incomplete" if "max_output_tokens" in fields else "completed"
    assert kinds[-4:] == ["output_text.done", "content_part.done", "output_item.done", ended]
    assert body["status"] == ended
    assert (body["incomplete_details"] or {}).get("reason") == ("max_output_tokens" if ended == "incomplete" else None)
    ClientResponse.model_validate(body)


async def test_items_become_messages(api: Api) -> None:
    items: list[dict[str, Any]] = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]},
        {"type": "reasoning", "id": "rs_1", "summary": []},
        {"role": "assistant", "content": [{"type": "output_text", "text": "I look."}]},
        {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"},
        {"type": "function_call", "call_id": "c2", "name": "see", "arguments": "{}", "status": "completed"},
        {"type": "function_call_output", "call_id": "c1", "output": "seen"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "as well"}]},
    ]
    api.deps.log_content = True
    answer = await api.answer(ROUTE, ask(input=items, instructions="Be kind.", store=False))
    assert answer["edgewise"]["ignored"] == ["input[].reasoning"]
    prompt = bytes(id for id in api.engine.requests[-1].prompt if id < 256).decode()
    order = ["Be kind.", "Be brief.", "a\nb", "I look.", "seen", "as well"]
    assert [prompt.index(text) for text in order] == sorted(prompt.index(text) for text in order)


async def test_a_conversation_is_continued_without_its_instructions(api: Api) -> None:
    first = await api.answer(ROUTE, ask(input="one", instructions="Only now."))
    second = await api.answer(ROUTE, ask(input="two", previous_response_id=first["id"]))
    third = await api.answer(ROUTE, ask(input="three", previous_response_id=second["id"]))
    prompt = bytes(id for id in api.engine.requests[-1].prompt if id < 256).decode()
    places = [prompt.index(text) for text in ("one", TEXT, "two", "three")]
    assert places == sorted(places)
    assert prompt.count(TEXT) == 2
    assert "Only now." not in prompt
    assert third["previous_response_id"] == second["id"]


async def test_what_is_kept_is_shown_listed_and_deleted(api: Api) -> None:
    made = await api.answer(ROUTE, ask(input=[{"role": "user", "content": text} for text in "abc"]))
    one = f"{ROUTE}/{made['id']}"
    assert (await api.get(one)).json() == made
    page = (await api.get(f"{one}/input_items?limit=2&order=asc")).json()
    assert [item["content"][0]["text"] for item in page["data"]] == ["a", "b"]
    assert page["has_more"]
    rest = (await api.get(f"{one}/input_items?order=asc&after={page['last_id']}")).json()
    assert [item["content"][0]["text"] for item in rest["data"]] == ["c"]
    assert error_of(await api.post(f"{one}/cancel", {}))["code"] == "invalid_value"
    assert (await api.request("DELETE", one)).json() == {"id": made["id"], "object": "response", "deleted": True}
    for method, path in (("GET", one), ("DELETE", one), ("GET", f"{one}/input_items"), ("POST", f"{one}/cancel")):
        assert (await api.request(method, path)).status_code == 404
    again = await api.refusal(ROUTE, ask(previous_response_id=made["id"]), 404)
    assert again["param"] == "previous_response_id"


async def test_store_false_keeps_nothing(api: Api) -> None:
    made = await api.answer(ROUTE, ask(store=False))
    assert made["store"] is False
    assert (await api.get(f"{ROUTE}/{made['id']}")).status_code == 404


async def test_keys_do_not_see_each_others_answers() -> None:
    keys = Keys({name: Record(name, name, frozenset({"inference"})) for name in ("a", "b")})
    api = make_api(FakeEngine(script=says("x")), keys=keys, base="http://192.0.2.7")
    api.headers["authorization"] = "Bearer a"
    made = await api.answer(ROUTE, ask())
    api.headers["authorization"] = "Bearer b"
    assert (await api.get(f"{ROUTE}/{made['id']}")).status_code == 404
    await api.refusal(ROUTE, ask(previous_response_id=made["id"]), 404)
    api.headers["authorization"] = "Bearer a"
    assert (await api.get(f"{ROUTE}/{made['id']}")).status_code == 200
    api.deps.state.close()


async def test_the_number_of_kept_answers_is_limited() -> None:
    api = make_api(FakeEngine(script=says("x")), keep=Keeping(responses_count=1))
    first, second = [(await api.answer(ROUTE, ask()))["id"] for _ in range(2)]
    assert (await api.get(f"{ROUTE}/{first}")).status_code == 404
    assert (await api.get(f"{ROUTE}/{second}")).status_code == 200
    api.deps.state.close()


@pytest.mark.parametrize("name", sorted(IGNORED))
async def test_ignored_fields_are_listed(api: Api, name: str) -> None:
    assert (await api.answer(ROUTE, ask(**{name: "x"})))["edgewise"]["ignored"] == [name]


async def test_what_includes_would_show_is_never_there(api: Api) -> None:
    answer = await api.answer(ROUTE, ask(include=sorted(INCLUDE_IGNORED)))
    assert answer["edgewise"]["ignored"] == [f"include.{name}" for name in sorted(INCLUDE_IGNORED)]


@pytest.mark.parametrize("name", sorted(REFUSED))
async def test_refused_fields_are_named(api: Api, name: str) -> None:
    error = await api.refusal(ROUTE, ask(**{name: {"some": "thing"}}))
    assert (error["code"], error["param"]) == ("unsupported_parameter", name)


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"input": []}, "input", "invalid_type"),
        ({"input": None}, "input", "invalid_type"),
        ({"input": [5]}, "input[0]", "invalid_type"),
        ({"input": [{"role": "robot", "content": "x"}]}, "input[0].role", "invalid_value"),
        ({"input": [{"role": "user", "content": []}]}, "input[0].content", "invalid_type"),
        ({"input": [{"role": "user", "content": "x", "foo": 1}]}, "input[0].foo", "unknown_parameter"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
            "input[0].content[0].image_url",
            "missing_required_parameter",
        ),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "file-1"}]}]},
            "input[0].content[0].file_id",
            "invalid_value",
        ),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "data:,x"}]}]},
            "input[0].content[0].image_url",
            "invalid_value",
        ),
        (
            {"input": [{"role": "user", "content": [{"type": "output_text"}]}]},
            "input[0].content[0].type",
            "invalid_value",
        ),
        ({"input": [{"type": "function_call", "name": "f"}]}, "input[0].call_id", "missing_required_parameter"),
        ({"input": [{"type": "web_search_call"}]}, "input[0].type", "unsupported_parameter"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type", "unsupported_parameter"),
        ({"tools": [{"type": "function", "name": "a b"}]}, "tools[0].name", "invalid_value"),
        ({"tools": [{"type": "function", "name": "f", "parameters": 5}]}, "tools[0].parameters", "invalid_type"),
        ({"tool_choice": "required"}, "tool_choice", "invalid_value"),
        ({"tool_choice": {"type": "function", "name": "f"}}, "tool_choice", "invalid_value"),
        ({"tool_choice": {"type": "mcp"}}, "tool_choice", "unsupported_parameter"),
        ({"text": {"verbosity": "high"}}, "text.verbosity", "unsupported_parameter"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type", "invalid_value"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema", "invalid_type"),
        ({"include": ["everything"]}, "include", "invalid_value"),
        ({"metadata": {"k": "v" * 513}}, "metadata", "invalid_value"),
        ({"metadata": {str(n): "v" for n in range(17)}}, "metadata", "invalid_value"),
        ({"stream_options": {}}, "stream_options", "invalid_value"),
        ({"max_output_tokens": 0}, "max_output_tokens", "invalid_value"),
        ({"temperature": 3}, "temperature", "invalid_value"),
        ({"top_logprobs": 21}, "top_logprobs", "invalid_value"),
        ({"n": 2}, "n", "unknown_parameter"),
    ],
)
async def test_mistakes_are_named(api: Api, fields: dict[str, Any], param: str, code: str) -> None:
    error = await api.refusal(ROUTE, ask(**fields))
    assert (error["param"], error["code"]) == (param, code)


@pytest.mark.parametrize("query", ["limit=0", "limit=101", "limit=x", "order=up", "before=x"])
async def test_wrong_pages_are_refused(api: Api, query: str) -> None:
    made = await api.answer(ROUTE, ask())
    assert (await api.get(f"{ROUTE}/{made['id']}/input_items?{query}")).status_code == 400


async def test_a_fault_in_a_stream_is_told_and_nothing_is_kept() -> None:
    api = make_api(FakeEngine(script=says("hello"), fault=Fault(0, 2, message="It broke.")))
    events = await stream(api, ask())
    assert events[-1]["type"] == "response.failed"
    error = events[-1]["response"]["error"]
    assert (error["code"], error["type"], error["message"]) == ("server_error", "engine_error", "It broke.")
    assert (await api.get(f"{ROUTE}/{events[-1]['response']['id']}")).status_code == 404
    api.deps.state.close()


async def test_an_answer_without_text_has_a_message(api: Api) -> None:
    api.engine.script = lambda request: [EOS]
    body = await api.answer(ROUTE, ask())
    assert [item["type"] for item in body["output"]] == ["message"]
    assert body["output"][0]["content"][0]["text"] == ""


async def test_the_official_client(api: Api) -> None:
    async with (
        listening(api) as url,
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0) as client,
    ):
        made = await client.responses.create(model="tiny", input="hi", metadata={"a": "b"})
        assert made.output_text == TEXT
        assert made.usage is not None
        assert made.usage.output_tokens == len(TEXT.encode()) + 1
        assert await client.responses.retrieve(made.id) == made
        async with client.responses.stream(model="tiny", input="more", previous_response_id=made.id) as events:
            text = "".join([event.delta async for event in events if event.type == "response.output_text.delta"])
            final = await events.get_final_response()
        assert text == final.output_text == TEXT
        assert [item.id async for item in client.responses.input_items.list(made.id)]
        await client.responses.delete(made.id)
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(made.id)
        with pytest.raises(openai.BadRequestError) as refused:
            await client.responses.create(model="tiny", input="hi", background=True)
        assert refused.value.param == "background"


async def test_functions_and_formats_reach_the_task(api: Api) -> None:
    tool = {"type": "function", "name": "f", "description": "d", "parameters": {"type": "object"}, "strict": True}
    body = ask(
        tools=[tool],
        tool_choice={"type": "function", "name": "f"},
        parallel_tool_calls=False,
        text={"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}}},
    )
    caller = Caller(request_id="r", salt="s", timeout_s=None, max_sequences=1)
    task = (await prepare_response(api.deps, body, caller)).task
    assert isinstance(task.input, ChatInput)
    function = {"name": "f", "description": "d", "parameters": {"type": "object"}, "strict": True}
    assert task.input.tools == ({"type": "function", "function": function},)
    assert (task.tool_choice.mode, task.tool_choice.name, task.tool_choice.parallel) == ("required", "f", False)
    assert task.answer_format is not None
    assert (task.answer_format.kind, task.answer_format.value) == ("json_schema", {"type": "object"})


async def test_a_full_disk_is_said_reading_goes_on_and_it_heals(small_disk: Path) -> None:
    api = make_api(FakeEngine(script=says("x" * 3000)), state=open_state(small_disk / "state.db"))
    made = await api.answer(ROUTE, ask())
    ballast = fill(small_disk)
    error: dict[str, Any] = {}
    for _ in range(200):
        response = await api.post(ROUTE, ask())
        if response.status_code != 200:
            error = error_of(response)
            break
    assert (response.status_code, error["code"]) == (507, "storage_error")
    failed = (await stream(api, ask()))[-1]
    assert (failed["type"], failed["response"]["error"]["type"]) == ("response.failed", "storage_error")
    assert (await api.get(f"{ROUTE}/{made['id']}")).json() == made
    assert (await api.post(ROUTE, ask(store=False))).status_code == 200
    ballast.unlink()
    assert (await api.post(ROUTE, ask())).status_code == 200
    assert await api.deps.state.check() == "ok"
    api.deps.state.close()
