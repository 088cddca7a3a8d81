"""Checks of plain JSON values that several APIs share; each raises an `InvalidRequest` that names the field."""

from __future__ import annotations

import re
from collections.abc import Mapping, Set
from typing import Any

from edgewise.api.errors import MissingField, WrongType
from edgewise.api.fields import Refusal
from edgewise.core.errors import InvalidRequest, UnknownField, UnsupportedField

FUNCTION_NAME = re.compile(r"[A-Za-z0-9_-]{1,128}", re.ASCII)


def only(value: Mapping[str, Any], allowed: Set[str], where: str) -> None:
    """Raises `UnknownField` for a key that is not allowed."""
    unknown = sorted(value.keys() - allowed)
    if unknown:
        name = f"{where}.{unknown[0][:80]}"
        raise UnknownField(f"Unknown field '{name}': remove it.", param=name)


def an_object(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise WrongType(f"'{where}' must be an object.", param=where)
    return value


def a_string(value: Mapping[str, Any], name: str, where: str) -> str:
    """A required string."""
    param = f"{where}.{name}"
    if value.get(name) is None:
        raise MissingField(f"The field '{param}' is required.", param=param)
    text = value[name]
    if not isinstance(text, str):
        raise WrongType(f"'{param}' must be a string.", param=param)
    return text


def refuse(body: Any, table: Mapping[str, Refusal]) -> None:
    """Raises `UnsupportedField` for a field that would change the answer and is not supported."""
    for name, refusal in table.items():
        value = getattr(body, name)
        if value is not None and not refusal.harmless(value):
            raise UnsupportedField(f"'{name}' is not supported here: {refusal.why}.", param=name)


def function(name: Any, description: Any, schema: Any, where: str, *, schema_field: str) -> dict[str, Any]:
    """One function that the model may call, in OpenAI's chat form."""
    if not isinstance(name, str) or not FUNCTION_NAME.fullmatch(name):
        raise InvalidRequest(f"'{where}.name' must be 1 to 128 letters, digits, '_' and '-'.", param=f"{where}.name")
    if description is not None and not isinstance(description, str):
        raise WrongType(f"'{where}.description' must be a string.", param=f"{where}.description")
    if schema is not None and not isinstance(schema, dict):
        raise WrongType(f"'{where}.{schema_field}' must be a JSON schema.", param=f"{where}.{schema_field}")
    made: dict[str, Any] = {"name": name}
    if description is not None:
        made["description"] = description
    made["parameters"] = {"type": "object", "properties": {}} if schema is None else schema
    return {"type": "function", "function": made}
