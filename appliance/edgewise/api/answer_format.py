"""The fields that ask for structured output: OpenAI's `response_format`, and vLLM's `structured_outputs` and `guided_*`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal, Protocol

from edgewise.api.checks import a_string, an_object, only
from edgewise.api.errors import MissingField, WrongType
from edgewise.core.errors import InvalidRequest
from edgewise.pipeline.task import AnswerFormat

Kind = Literal["json_object", "json_schema", "regex", "choice", "grammar"]

_STRUCTURED: Mapping[str, Kind] = {
    "json": "json_schema",
    "json_object": "json_object",
    "regex": "regex",
    "choice": "choice",
    "grammar": "grammar",
}
_GUIDED = ("json", "regex", "choice", "grammar")
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)


class Structured(Protocol):
    """A body with the extensions."""

    structured_outputs: Any
    guided_json: Any
    guided_regex: Any
    guided_choice: Any
    guided_grammar: Any


def answer_format_of(body: Structured, response_format: Any = None) -> AnswerFormat | None:
    """What the answer must be; None for free text. Raises `InvalidRequest` naming the field, also where several ask."""
    asked = [_response_format(response_format), _structured_outputs(body.structured_outputs)]
    for name in _GUIDED:
        value = getattr(body, f"guided_{name}")
        asked.append(None if value is None else _extension(name, value, f"guided_{name}"))
    formats = [one for one in asked if one is not None]
    if len(formats) > 1:
        fields = " and ".join(f"'{one.param.split('.')[0]}'" for one in formats)
        raise InvalidRequest(f"{fields} both say what the answer must be: send one.", param=formats[1].param)
    return formats[0] if formats else None


def _response_format(value: Any) -> AnswerFormat | None:
    if value is None:
        return None
    where = "response_format"
    wanted = an_object(value, where)
    kind = a_string(wanted, "type", where)
    if kind in ("text", "json_object"):
        only(wanted, {"type"}, where)
        return None if kind == "text" else AnswerFormat(kind="json_object", param=where)
    if kind != "json_schema":
        raise InvalidRequest(
            f"'{where}.type' is '{kind[:40]}': it must be 'text', 'json_object' or 'json_schema'.",
            param=f"{where}.type",
        )
    only(wanted, {"type", "json_schema"}, where)
    return _json_schema(wanted.get("json_schema"), f"{where}.json_schema")


def _json_schema(value: Any, where: str) -> AnswerFormat:
    """Enforced in full, `strict` or not."""
    if value is None:
        raise MissingField(f"The field '{where}' is required.", param=where)
    wanted = an_object(value, where)
    only(wanted, {"name", "description", "schema", "strict"}, where)
    if not _NAME.fullmatch(a_string(wanted, "name", where)):
        raise InvalidRequest(f"'{where}.name' must be 1 to 64 letters, digits, '_' and '-'.", param=f"{where}.name")
    if wanted.get("strict") is not None and not isinstance(wanted["strict"], bool):
        raise WrongType(f"'{where}.strict' must be true or false.", param=f"{where}.strict")
    if wanted.get("schema") is None:
        raise MissingField(f"The field '{where}.schema' is required.", param=f"{where}.schema")
    return AnswerFormat(kind="json_schema", value=wanted["schema"], param=f"{where}.schema")


def _structured_outputs(value: Any) -> AnswerFormat | None:
    if value is None:
        return None
    where = "structured_outputs"
    wanted = {name: one for name, one in an_object(value, where).items() if one is not None}
    only(wanted, _STRUCTURED.keys(), where)
    if len(wanted) != 1:
        raise InvalidRequest(f"'{where}' must have exactly one of {', '.join(_STRUCTURED)}.", param=where)
    ((name, one),) = wanted.items()
    return _extension(name, one, f"{where}.{name}")


def _extension(name: str, value: Any, param: str) -> AnswerFormat:
    kind = _STRUCTURED[name]
    if kind == "json_object":
        if value is not True:
            raise InvalidRequest(f"'{param}' must be true, or left out.", param=param)
        return AnswerFormat(kind=kind, param=param)
    return AnswerFormat(kind=kind, value=value, param=param)
