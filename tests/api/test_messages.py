"""What a message may be, and how the model gets to see it."""

from __future__ import annotations

from typing import Any

import pytest

from edgewise.models.templates.tool_styles import ToolSupport
from tests.api.harness import CHAT, Api, hello, make_api
from tests.fakes.serving import fake_model
from tests.fakes.text import TagTemplate

USER = {"role": "user", "content": "hi"}
CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}


async def seen(api: Api, *messages: dict[str, Any]) -> str:
    """The prompt as the engine got it, special tokens as tags."""
    await api.answer(CHAT, hello(messages=list(messages)))
    return api.deps.models.get("tiny").tokenizer.decode(api.engine.requests[-1].prompt, skip_special=False)


@pytest.mark.parametrize(
    ("message", "role", "content"),
    [
        ({"role": "system", "content": "be brief"}, "system", "be brief"),
        ({"role": "developer", "content": "be brief"}, "system", "be brief"),
        ({"role": "assistant", "content": "yes"}, "assistant", "yes"),
        ({"role": "assistant", "content": None}, "assistant", ""),
        ({"role": "assistant"}, "assistant", ""),
        ({"role": "assistant", "content": None, "refusal": "No."}, "assistant", "No."),
        ({"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}, "assistant", "No."),
        ({"role": "user", "content": ""}, "user", ""),
        ({"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}, "user", "a\nb"),
    ],
)
async def test_roles_and_content(message: dict[str, Any], role: str, content: str) -> None:
    prompt = await seen(make_api(), message, USER)
    assert prompt == f"<|start|>{role}\n{content}<|end|>\n<|start|>user\nhi<|end|>\n<|start|>assistant\n"


async def test_an_answers_message_can_be_sent_back_as_it_came() -> None:
    api = make_api()
    message = (await api.answer(CHAT, hello()))["choices"][0]["message"]
    body = await api.answer(CHAT, hello(messages=[USER, message | {"tool_calls": None, "audio": None}, USER]))
    assert body["edgewise"]["ignored"] == []


async def test_tool_calls_that_the_template_does_not_show_are_named_in_the_receipt() -> None:
    history = [USER, {"role": "assistant", "content": None, "tool_calls": [CALL]}]
    model = fake_model(template=TagTemplate(ToolSupport("llama", writes_calls=True)))
    body = await make_api(model=model).answer(CHAT, hello(messages=[*history, USER]))
    assert body["edgewise"]["warnings"] == [
        "The model does not see the tool calls of messages[1]: its chat template has no place for them."
    ]


async def test_fields_of_messages_without_effect_are_listed() -> None:
    part = {"type": "text", "text": "a", "prompt_cache_breakpoint": {"mode": "explicit"}}
    body = await make_api().answer(CHAT, hello(messages=[{"role": "user", "name": "Ann", "content": [part]}]))
    assert body["edgewise"]["ignored"] == ["messages[].name", "messages[].content[].prompt_cache_breakpoint"]


@pytest.mark.parametrize(
    ("messages", "param", "code"),
    [
        ([], "messages", "invalid_value"),
        (None, "messages", "invalid_type"),
        ("hi", "messages", "invalid_type"),
        ([None], "messages[0]", "invalid_type"),
        ([{"content": "hi"}], "messages[0].role", "missing_required_parameter"),
        ([{"role": "robot", "content": "hi"}], "messages[0].role", "invalid_value"),
        ([{"role": "user"}], "messages[0].content", "invalid_value"),
        ([USER, {"role": "user", "content": None}], "messages[1].content", "invalid_value"),
        ([{"role": "system", "content": None}, USER], "messages[0].content", "invalid_value"),
        ([{"role": "user", "content": []}], "messages[0].content", "invalid_type"),
        ([{"role": "user", "content": 5}], "messages[0].content", "invalid_type"),
        ([{"role": "user", "content": ["hi"]}], "messages[0].content[0]", "invalid_type"),
        ([{"role": "user", "content": [{"text": "hi"}]}], "messages[0].content[0].type", "invalid_value"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text", "invalid_type"),
        ([{"role": "user", "content": [{"type": [], "text": "a"}]}], "messages[0].content[0].type", "invalid_value"),
        (
            [{"role": "user", "content": [{"type": "text", "text": "a", "x": 1}]}],
            "messages[0].content[0].x",
            "unknown_parameter",
        ),
        ([{"role": "user", "content": "hi", "mood": 1}], "messages[0].mood", "unknown_parameter"),
        ([{"role": "user", "content": "hi", "tool_call_id": "1"}], "messages[0].tool_call_id", "unknown_parameter"),
        ([{"role": "user", "content": "hi", "tool_calls": [CALL]}], "messages[0].tool_calls", "unknown_parameter"),
        ([{"role": "tool", "content": "hi"}], "messages[0].tool_call_id", "missing_required_parameter"),
        ([{"role": "assistant", "audio": {"id": "a"}}], "messages[0].audio", "unsupported_parameter"),
        (
            [{"role": "assistant", "function_call": {"name": "f", "arguments": ""}}],
            "messages[0].function_call",
            "unsupported_parameter",
        ),
    ],
)
async def test_refused_by_name(messages: Any, param: str, code: str) -> None:
    error = await make_api().refusal(CHAT, hello(messages=messages))
    assert (error["param"], error["code"]) == (param, code)
    assert param in error["message"]


async def test_files_are_refused_by_name() -> None:
    parts = [{"type": "text", "text": "what is this?"}, {"type": "file", "file": {"url": "file:///etc/hostname"}}]
    error = await make_api().refusal(CHAT, hello(messages=[{"role": "user", "content": parts}]))
    assert error["code"] == "unsupported_parameter"
    assert "'file'" in error["message"]
    assert error["param"] == "messages[0].content[1]"
    assert "hostname" not in error["message"]


@pytest.mark.parametrize(
    ("part", "param", "code"),
    [
        ({"image_url": {"url": "file:///etc/hostname"}}, ".image_url.url", "invalid_value"),
        ({"image_url": {"url": "/etc/hostname"}}, ".image_url.url", "invalid_value"),
        ({"image_url": {"url": "cat.png"}}, ".image_url.url", "invalid_value"),
        ({"image_url": {"url": "ftp://x/a.png"}}, ".image_url.url", "invalid_value"),
        ({"image_url": "data:,x"}, ".image_url", "invalid_type"),
        ({"image_url": {}}, ".image_url.url", "missing_required_parameter"),
        ({"image_url": {"url": "data:,x", "detail": "best"}}, ".image_url.detail", "invalid_value"),
        ({"image_url": {"url": "data:,x", "size": 3}}, ".image_url.size", "unknown_parameter"),
        ({}, ".image_url", "invalid_type"),
        ({"image_url": {"url": "data:,x"}, "foo": 1}, ".foo", "unknown_parameter"),
    ],
)
async def test_pictures_are_refused_by_name(part: dict[str, Any], param: str, code: str) -> None:
    messages = [{"role": "user", "content": [{"type": "image_url", **part}]}]
    error = await make_api().refusal(CHAT, hello(messages=messages))
    assert (error["param"], error["code"]) == (f"messages[0].content[0]{param}", code)
    assert "hostname" not in error["message"]


@pytest.mark.parametrize("role", ["system", "assistant"])
async def test_only_users_show_pictures(role: str) -> None:
    parts = [{"type": "image_url", "image_url": {"url": "data:,x"}}]
    error = await make_api().refusal(CHAT, hello(messages=[{"role": role, "content": parts}]))
    assert error["param"] == "messages[0].content[0].type"


async def test_a_picture_that_nobody_here_can_look_at_is_refused_with_remedies() -> None:
    parts = [{"type": "image_url", "image_url": {"url": "data:,x"}}]
    error = await make_api().refusal(CHAT, hello(messages=[{"role": "user", "content": parts}]))
    assert error["param"] == "messages[0].content[0].image_url.url"
    assert "has no eyes" in error["message"]
    assert "edgewise models pull rapidocr" in error["message"]


async def test_a_template_that_refuses_is_the_callers_error() -> None:
    error = await make_api().refusal(CHAT, hello(messages=[{"role": "user", "content": "refuse me"}]))
    assert error["code"] == "template_error"
