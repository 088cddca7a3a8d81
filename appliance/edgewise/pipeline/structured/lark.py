"""Pieces of grammars in llguidance's Lark syntax, and the JSON text that the engine takes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from llguidance import regex_to_lark

from edgewise.pipeline.structured.dates import with_dates

JSON_OPTIONS: Mapping[str, Any] = {
    "whitespace_pattern": r"(\n {0,24}| )",
    "json_allowed_escapes": 'nrbtf\\"',
}
"""Bounds for JSON: between two parts at most a space, or a line break and an indent, so that no answer can be white space for
ever; no `\\u` escapes, by which a key could be written twice in two spellings."""

_HEAD = '%llguidance {"no_forcing": true}\n'
"""Allow every spelling of what is allowed: the engine cannot know which one the tokenizer would choose, the model does."""


def quoted(text: str) -> str:
    """A text as a Lark string."""
    return json.dumps(text, ensure_ascii=False)


def json_rule(schema: Mapping[str, Any]) -> str:
    """An expression for JSON that validates against a (checked) schema."""
    return f"%json {json.dumps({**with_dates(schema), 'x-guidance': JSON_OPTIONS})}"


def regex_rule(expression: str) -> str:
    """An expression for a text that matches as a whole."""
    return f"/{regex_to_lark(expression, use_ascii='d')}/"


def constraint(start: str, **named: str) -> str:
    """The engine's text for a grammar whose rules are `start`, with others beside it that it may name as `@name`."""
    grammars = [{"lark_grammar": _HEAD + start}]
    grammars += [{"name": name, "lark_grammar": _HEAD + text} for name, text in named.items()]
    return json.dumps({"grammars": grammars})
