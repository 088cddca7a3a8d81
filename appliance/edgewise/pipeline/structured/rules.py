"""What an `AnswerFormat` asks for, as a grammar; refused by name where it cannot be had."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from edgewise.core.errors import InvalidRequest, UnsupportedField
from edgewise.pipeline.structured.check import plain
from edgewise.pipeline.structured.lark import json_rule, quoted, regex_rule
from edgewise.pipeline.structured.schema import check_schema
from edgewise.pipeline.task import AnswerFormat

MAX_CHOICES = 1_000
MAX_REGEX_CHARS = 10_000
MAX_GRAMMAR_CHARS = 64_000
_NOT_IN_GRAMMARS = ("%json", "%llguidance", "x-guidance", "%regex", "@")


def rules_of(form: AnswerFormat) -> str:
    """Rules, `start` among them. Raises `InvalidRequest` naming the field; what it is about says `form.param`."""
    return _WRITERS[form.kind](form.value, form.param)


def _json_object(_: Any, __: str) -> str:
    return f"start: {json_rule({'type': 'object'})}"


def _json_schema(value: Any, param: str) -> str:
    return f"start: {json_rule(check_schema(value, param))}"


def _regex(value: Any, param: str) -> str:
    text = _text(value, param, MAX_REGEX_CHARS)
    try:
        return f"start: {regex_rule(text)}"
    except ValueError as error:
        raise InvalidRequest(f"'{param}': {plain(str(error))}.", param=param) from error


def _choice(value: Any, param: str) -> str:
    if not isinstance(value, (list, tuple)) or not value or not all(isinstance(one, str) for one in value):
        raise InvalidRequest(f"'{param}' must be a list of strings, not empty.", param=param)
    if len(value) > MAX_CHOICES:
        raise InvalidRequest(f"'{param}' has {len(value)} choices: the limit is {MAX_CHOICES}.", param=param)
    return f"start: {' | '.join(quoted(one) for one in dict.fromkeys(value))}"


def _grammar(value: Any, param: str) -> str:
    text = _text(value, param, MAX_GRAMMAR_CHARS)
    if "::=" in text:
        raise UnsupportedField(
            f"'{param}' is written in GBNF or EBNF: write it in Lark's syntax (rule: expansion).", param=param
        )
    for word in _NOT_IN_GRAMMARS:
        if word in text:
            raise UnsupportedField(f"'{param}' uses '{word}', which is not supported here in a grammar.", param=param)
    return text


def _text(value: Any, param: str, most: int) -> str:
    if not isinstance(value, str) or not value:
        raise InvalidRequest(f"'{param}' must be a string, not empty.", param=param)
    if len(value) > most:
        raise InvalidRequest(f"'{param}' has {len(value)} characters: the limit is {most}.", param=param)
    return value


_WRITERS: Mapping[str, Callable[[Any, str], str]] = {
    "json_object": _json_object,
    "json_schema": _json_schema,
    "regex": _regex,
    "choice": _choice,
    "grammar": _grammar,
}
