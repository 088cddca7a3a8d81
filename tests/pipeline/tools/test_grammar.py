"""Forced calls: whatever is drawn inside the grammar is read back as calls whose arguments validate."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import jsonschema
import pytest

from edgewise.pipeline.structured.lark import constraint
from edgewise.pipeline.tools.grammar import CallGrammar
from edgewise.pipeline.tools.styles import STYLES, ToolStyle
from tests.pipeline.structured.walking import BYTES, byte_vocabulary, walk
from tests.pipeline.tools.test_scanner import read

GET = {
    "type": "object",
    "properties": {"city": {"enum": ["Köln", "東京", 'a"b']}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city"],
    "additionalProperties": False,
}
PUT = {
    "type": "object",
    "properties": {"tags": {"type": "array", "items": {"$ref": "#/$defs/tag"}, "maxItems": 2}},
    "required": ["tags"],
    "additionalProperties": False,
    "$defs": {"tag": {"type": "string", "maxLength": 3}},
}
SCHEMAS: Mapping[str, Mapping[str, Any]] = {"get": GET, "put": PUT}
styles = pytest.mark.parametrize("style", STYLES.values(), ids=list(STYLES))


def markers(style: ToolStyle, *, special: bool) -> dict[str, int]:
    """The style's markers as control tokens, or none of them; glm's can be nothing else."""
    texts = sorted(style.markers - {"\n"}) if special or style.name == "glm" else []
    return {text: index for index, text in enumerate(texts, start=1)}


@styles
@pytest.mark.parametrize("special", [False, True], ids=["text", "control"])
def test_forced_calls_are_read_back_and_validate(style: ToolStyle, special: bool) -> None:
    control = markers(style, special=special)
    grammar = constraint(CallGrammar(style, control, tuple(SCHEMAS.items())).forced(parallel=True))
    counts = set()
    for seed in range(6):
        text = walk(grammar, seed, byte_vocabulary(control)).decode()
        content, calls = read(style, list(text))
        assert content == ""
        assert calls
        for name, arguments in calls:
            jsonschema.validate(json.loads(arguments), SCHEMAS[name])
        counts.add(len(calls))
    assert len(counts) > 1, "chance must have made one and several calls"


@styles
def test_without_parallel_calls_there_is_one(style: ToolStyle) -> None:
    control = markers(style, special=False)
    grammar = constraint(CallGrammar(style, control, tuple(SCHEMAS.items())).forced(parallel=False))
    for seed in range(4):
        assert len(read(style, [walk(grammar, seed, byte_vocabulary(control)).decode()])[1]) == 1


@pytest.mark.parametrize("name", ["hermes", "generic", "mistral", "phi"])
@pytest.mark.parametrize("special", [False, True], ids=["text", "control"])
def test_free_text_turns_strict_at_the_trigger(name: str, special: bool) -> None:
    style = STYLES[name]  # type: ignore[index]
    control = markers(style, special=special)
    rules = CallGrammar(style, control, (("get", GET),)).triggered(parallel=True)
    assert rules is not None
    text = "" if special else "Hello. "
    mark = [control[style.trigger]] if special else [BYTES + byte for byte in style.trigger.encode()]
    begun = [*(BYTES + byte for byte in text.encode()), *mark]
    answer = walk(constraint(rules), 4, byte_vocabulary(control), begun=begun, eager=True).decode()
    content, calls = read(style, [answer])
    assert content == text.strip()
    assert calls[0][0] == "get"
    jsonschema.validate(json.loads(calls[0][1]), GET)


@pytest.mark.parametrize("name", ["llama", "mistral_args", "glm"])
def test_styles_without_a_certain_trigger_say_so(name: str) -> None:
    style = STYLES[name]  # type: ignore[index]
    assert CallGrammar(style, {}, (("get", GET),)).triggered(parallel=True) is None


def test_calls_or_an_answer_in_a_format() -> None:
    calls = CallGrammar(STYLES["hermes"], {}, (("get", GET),)).calls(parallel=True)
    grammar = constraint(f"start: calls | @answer\n{calls}", answer='start: "yes" | "no"')
    texts = {walk(grammar, seed).decode() for seed in range(12)}
    assert texts & {"yes", "no"}
    assert any(text.startswith("<tool_call>") for text in texts)
