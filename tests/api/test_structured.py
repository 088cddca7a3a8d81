"""Fields that ask for structured output: what reaches the engine, and what is refused by name."""

from __future__ import annotations

import json
from typing import Any

import pytest

from edgewise.core.errors import ConstraintFailed
from tests.api.harness import CHAT, COMPLETIONS, hello, make_api, prompt
from tests.fakes.engine import FakeEngine, Fault

SCHEMA = {"type": "object", "properties": {"a": {"enum": ["é"]}}, "required": ["a"], "additionalProperties": False}
ROUTES = [(CHAT, hello), (COMPLETIONS, prompt)]
both = pytest.mark.parametrize(("route", "body"), ROUTES)

EXTENSIONS: list[tuple[dict[str, Any], str]] = [
    ({"structured_outputs": {"json": SCHEMA}}, "%json"),
    ({"structured_outputs": {"json_object": True, "regex": None}}, "%json"),
    ({"structured_outputs": {"regex": "[ab]+/"}}, "start: /[ab]+\\//"),
    ({"structured_outputs": {"choice": ["ja", "nein"]}}, 'start: "ja" | "nein"'),
    ({"structured_outputs": {"grammar": 'start: "x"'}}, 'start: "x"'),
    ({"guided_json": SCHEMA}, "%json"),
    ({"guided_regex": "a"}, "start: /a/"),
    ({"guided_choice": ["a"]}, 'start: "a"'),
    ({"guided_grammar": 'start: "x"'}, 'start: "x"'),
]


def rules(api: Any) -> str:
    text: str = json.loads(api.engine.requests[-1].constraint)["grammars"][0]["lark_grammar"]
    return text


@both
@pytest.mark.parametrize(("fields", "expected"), EXTENSIONS)
async def test_extensions_reach_the_engine(route: str, body: Any, fields: dict[str, Any], expected: str) -> None:
    api = make_api()
    await api.answer(route, body(**fields))
    assert expected in rules(api)


@pytest.mark.parametrize("strict", [True, False, None])
async def test_a_json_schema_is_enforced_strict_or_not(strict: bool | None) -> None:
    api = make_api()
    wanted = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA, "strict": strict}}
    await api.answer(CHAT, hello(response_format=wanted))
    assert '"enum": ["\\u00e9"]' in rules(api)


async def test_free_text_has_no_grammar() -> None:
    api = make_api()
    await api.answer(CHAT, hello(response_format={"type": "text"}))
    assert api.engine.requests[-1].constraint is None


async def test_the_end_of_the_form_is_not_to_be_ignored() -> None:
    api = make_api()
    body = await api.answer(COMPLETIONS, prompt(guided_regex="a", ignore_eos=True))
    assert 257 in api.engine.requests[-1].sampling.stop_token_ids
    assert body["edgewise"]["warnings"] == ["'ignore_eos' has no effect: the answer ends where its grammar does."]


def schema(value: Any, **more: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": value, **more}}}


S = "response_format.json_schema"
REFUSALS: list[tuple[dict[str, Any], str, str]] = [
    ({"response_format": {"type": "xml"}}, "response_format.type", "invalid_value"),
    ({"response_format": {"type": "text", "x": 1}}, "response_format.x", "unknown_parameter"),
    ({"response_format": "json"}, "response_format", "invalid_type"),
    ({"response_format": {"type": "json_schema"}}, S, "missing_required_parameter"),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "n"}}},
        f"{S}.schema",
        "missing_required_parameter",
    ),
    (schema({}, strict="yes"), f"{S}.strict", "invalid_type"),
    (schema([]), f"{S}.schema", "invalid_value"),
    (
        schema({"properties": {"a": {"uniqueItems": True}}}),
        f"{S}.schema.properties.a.uniqueItems",
        "unsupported_parameter",
    ),
    (schema({"$ref": "#/$defs/x"}), f"{S}.schema", "invalid_value"),
    (schema({"type": "string", "pattern": "(?=a)"}), f"{S}.schema", "invalid_value"),
    ({"structured_outputs": {}}, "structured_outputs", "invalid_value"),
    ({"structured_outputs": {"regex": "a", "json": {}}}, "structured_outputs", "invalid_value"),
    ({"structured_outputs": {"structural_tag": "x"}}, "structured_outputs.structural_tag", "unknown_parameter"),
    ({"structured_outputs": {"choice": "a"}}, "structured_outputs.choice", "invalid_value"),
    ({"structured_outputs": {"regex": "(a"}}, "structured_outputs.regex", "invalid_value"),
    ({"guided_grammar": "root ::= x"}, "guided_grammar", "unsupported_parameter"),
    ({"guided_regex": "a", "response_format": {"type": "json_object"}}, "guided_regex", "invalid_value"),
]


@pytest.mark.parametrize(("fields", "param", "code"), REFUSALS)
async def test_what_cannot_be_enforced_is_refused_by_name(fields: dict[str, Any], param: str, code: str) -> None:
    error = await make_api().refusal(CHAT, hello(**fields))
    assert (error["param"], error["code"]) == (param, code)


async def test_a_dead_end_is_a_400_or_an_error_event() -> None:
    fault = Fault(request=0, at=2, code=ConstraintFailed.code, message="The answer cannot go on.")
    response = await make_api(FakeEngine(fault=fault)).post(CHAT, hello(guided_regex="a"))
    assert (response.status_code, response.json()["error"]["code"]) == (400, "constraint_failed")
    stream = await make_api(FakeEngine(fault=fault)).post(CHAT, hello(guided_regex="a", stream=True))
    assert stream.status_code == 200
    assert '"code":"constraint_failed"' in stream.text.replace(" ", "").split("data:")[-1]
