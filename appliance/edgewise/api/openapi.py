"""How routes that read and check their bodies themselves tell /openapi.json what a body is."""

from __future__ import annotations

from functools import cache
from typing import Any

from pydantic import BaseModel

_DEFINITIONS = "#/$defs/"


def request_body(schema: type[BaseModel]) -> dict[str, Any]:
    """`openapi_extra` of a route that takes `schema` as JSON.

    Definitions stand where they are used: a reference inside the schema would be looked up from the start of the whole document.
    """
    body = dict(_schema_of(schema))
    definitions = body.pop("$defs", {})
    content = {"application/json": {"schema": _inlined(body, definitions)}}
    return {"requestBody": {"required": True, "content": content}}


@cache
def _schema_of(schema: type[BaseModel]) -> dict[str, Any]:
    """To be left as it is: making it takes most of the time in which an application is put together."""
    return schema.model_json_schema()


def request_form(schema: type[BaseModel], file: str) -> dict[str, Any]:
    """`openapi_extra` of a route that takes `schema` as a form, with a file in the field `file`."""
    extra = request_body(schema)
    content = extra["requestBody"]["content"]
    body = content.pop("application/json")
    body["schema"]["properties"] = {file: {"type": "string", "format": "binary"}, **body["schema"]["properties"]}
    body["schema"]["required"] = [file, *body["schema"].get("required", [])]
    content["multipart/form-data"] = body
    return extra


def _inlined(part: Any, definitions: dict[str, Any]) -> Any:
    if isinstance(part, list):
        return [_inlined(item, definitions) for item in part]
    if not isinstance(part, dict):
        return part
    reference = part.get("$ref")
    if isinstance(reference, str) and reference.startswith(_DEFINITIONS):
        rest = {key: value for key, value in part.items() if key != "$ref"}
        part = {**definitions[reference.removeprefix(_DEFINITIONS)], **rest}
    return {key: _inlined(value, definitions) for key, value in part.items()}
