"""Which JSON schemas can be enforced. Whatever cannot is refused by the keyword's name and its place in the schema.

The keywords are those of JSON Schema 2020-12 that llguidance turns into grammar, read more strictly than it does: unknown
keywords are no annotations here, since a caller who misspells `maxLength` means it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from math import lcm
from typing import Any

from edgewise.core.errors import InvalidRequest, UnsupportedField

MAX_DEPTH = 48
MAX_SCHEMAS = 5_000
MAX_PROPERTIES = 256
MAX_ENUM_VALUES = 2_000
MAX_STRING_CHARS = 100_000
MAX_MULTIPLE = 100_000
"""Least common multiple of all `multipleOf`, in units of their last decimal: the compiler makes that many states of it."""

ANNOTATIONS = frozenset(
    {"title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "$comment", "$schema", "$id"}
)
"""They restrict nothing."""
FORMATS = frozenset({"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"})
TYPES = frozenset({"null", "boolean", "integer", "number", "string", "array", "object"})


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 2**63


def _is_divisor(value: Any) -> bool:
    return _is_number(value) and 1e-9 <= value <= MAX_MULTIPLE


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_type(value: Any) -> bool:
    kinds = value if isinstance(value, list) and value else [value]
    return all(isinstance(kind, str) and kind in TYPES for kind in kinds)


def _is_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


def _is_list(value: Any) -> bool:
    return isinstance(value, list) and bool(value)


def _is_format(value: Any) -> bool:
    return isinstance(value, str) and value in FORMATS


def _is_local(value: Any) -> bool:
    return isinstance(value, str) and value.startswith("#")


def _is_schema(value: Any) -> bool:
    return isinstance(value, (bool, dict))


def _are_schemas(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(_is_schema(one) for one in value)


def _are_named_schemas(value: Any) -> bool:
    return isinstance(value, dict) and all(_is_schema(one) for one in value.values())


_RULES: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "type": (_is_type, f"must be one or several of {', '.join(sorted(TYPES))}"),
    "enum": (_is_list, "must be a list of at least one value"),
    "const": (lambda _: True, ""),
    "$ref": (_is_local, "must begin with '#': only this schema itself can be referred to"),
    "$defs": (_are_named_schemas, "must be an object of schemas"),
    "definitions": (_are_named_schemas, "must be an object of schemas"),
    "anyOf": (_are_schemas, "must be a list of schemas"),
    "oneOf": (_are_schemas, "must be a list of schemas"),
    "allOf": (_are_schemas, "must be a list of schemas"),
    "properties": (_are_named_schemas, "must be an object of schemas"),
    "patternProperties": (_are_named_schemas, "must be an object of schemas"),
    "additionalProperties": (_is_schema, "must be a schema"),
    "required": (_is_names, "must be a list of names"),
    "minProperties": (_is_count, "must be a whole number, at least 0"),
    "maxProperties": (_is_count, "must be a whole number, at least 0"),
    "items": (_is_schema, "must be a schema; for tuples use 'prefixItems'"),
    "prefixItems": (_are_schemas, "must be a list of schemas"),
    "minItems": (_is_count, "must be a whole number, at least 0"),
    "maxItems": (_is_count, "must be a whole number, at least 0"),
    "minLength": (_is_count, "must be a whole number, at least 0"),
    "maxLength": (_is_count, "must be a whole number, at least 0"),
    "pattern": (_is_text, "must be a regular expression"),
    "format": (_is_format, f"must be one of {', '.join(sorted(FORMATS))}"),
    "minimum": (_is_number, "must be a number within 64 bits"),
    "maximum": (_is_number, "must be a number within 64 bits"),
    "exclusiveMinimum": (_is_number, "must be a number within 64 bits"),
    "exclusiveMaximum": (_is_number, "must be a number within 64 bits"),
    "multipleOf": (_is_divisor, "must be a number from 1e-9 to 1e5"),
}
KEYWORDS = frozenset(_RULES)
"""Keywords that are enforced."""

_ONE = ("additionalProperties", "items")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_MAPS = ("properties", "patternProperties", "$defs", "definitions")


@dataclass(slots=True)
class _Size:
    schemas: int = 0
    values: int = 0
    chars: int = 0
    multiple: int = 1
    decimals: int = 0
    divided: bool = False

    def divide_by(self, value: float) -> int:
        """Take a `multipleOf` in; returns the least common multiple of all so far."""
        _, digits, exponent = Decimal(str(value)).as_tuple()
        assert isinstance(exponent, int)
        decimals = max(self.decimals, -exponent)
        units = int("".join(map(str, digits))) * 10 ** (exponent + decimals)
        scaled = self.multiple * 10 ** (decimals - self.decimals) if self.divided else 1
        self.multiple, self.divided = lcm(scaled, units), True
        self.decimals = decimals
        return self.multiple


def check_schema(schema: Any, param: str) -> dict[str, Any]:
    """The schema, if every keyword in it can be enforced.

    Raises:
        UnsupportedField: A keyword that cannot; `param` of the error is its path.
        InvalidRequest: A malformed keyword, or a schema beyond the limits.
    """
    if not isinstance(schema, dict):
        raise InvalidRequest(f"'{param}' must be a JSON schema, an object.", param=param)
    size = _Size()
    waiting: list[tuple[Any, str, int]] = [(schema, param, 1)]
    while waiting:
        one, path, depth = waiting.pop()
        if not isinstance(one, dict):
            continue
        _check_depth(depth, path)
        _check_keywords(one, path)
        _measure(one, size, path)
        waiting.extend((inner, f"{path}.{step}", depth + 1) for step, inner in _inner(one))
    return schema


def _check_depth(depth: int, path: str) -> None:
    if depth > MAX_DEPTH:
        raise InvalidRequest(f"'{path[:200]}' lies {depth} schemas deep: the limit is {MAX_DEPTH}.", param=path[:200])


def _check_keywords(schema: Mapping[str, Any], path: str) -> None:
    for keyword, value in schema.items():
        if keyword in ANNOTATIONS:
            continue
        where = f"{path}.{keyword[:80]}"
        rule = _RULES.get(keyword)
        if rule is None:
            raise UnsupportedField(
                f"The JSON schema keyword '{keyword[:80]}' ('{where}') cannot be enforced here: remove it.", param=where
            )
        holds, requirement = rule
        if not holds(value):
            raise InvalidRequest(f"The JSON schema keyword '{keyword}' ('{where}') {requirement}.", param=where)
    _check_sizes(schema, path)


def _check_sizes(schema: Mapping[str, Any], path: str) -> None:
    least = schema.get("minProperties", 0)
    if least > max(1, len(set(schema.get("required", ())))):
        raise UnsupportedField(
            f"The JSON schema keyword 'minProperties' ('{path}.minProperties') cannot be enforced here above 1, unless "
            "'required' names as many properties.",
            param=f"{path}.minProperties",
        )
    if len(schema.get("properties", ())) > MAX_PROPERTIES:
        raise InvalidRequest(
            f"'{path}.properties' has {len(schema['properties'])} properties: the limit is {MAX_PROPERTIES}.",
            param=f"{path}.properties",
        )


def _measure(schema: Mapping[str, Any], size: _Size, path: str) -> None:
    size.schemas += 1
    size.values += len(schema.get("enum", ()))
    size.chars += len(schema.get("pattern", "")) + sum(len(str(value)) for value in schema.get("enum", ()))
    for count, limit, what in (
        (size.schemas, MAX_SCHEMAS, "schemas"),
        (size.values, MAX_ENUM_VALUES, "enum values"),
        (size.chars, MAX_STRING_CHARS, "characters in enum values and patterns"),
        (
            size.divide_by(schema["multipleOf"]) if "multipleOf" in schema else 0,
            MAX_MULTIPLE,
            "steps in its 'multipleOf' together",
        ),
    ):
        if count > limit:
            raise InvalidRequest(f"The JSON schema has over {limit} {what} ('{path[:200]}').", param=path[:200])


def _inner(schema: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The schemas directly inside, with their paths."""
    for keyword in _ONE:
        if keyword in schema:
            yield keyword, schema[keyword]
    for keyword in _LISTS:
        yield from ((f"{keyword}[{index}]", one) for index, one in enumerate(schema.get(keyword, ())))
    for keyword in _MAPS:
        yield from ((f"{keyword}.{name[:80]}", one) for name, one in schema.get(keyword, {}).items())
