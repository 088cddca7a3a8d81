"""OpenAI's requests as an OpenAPI document: the public one where it can be fetched, else made from the types of their SDK.

openai-python's parameter types are generated from the public document, so a schema made from them describes the same bodies:
every field, every variant. What is lost is prose and a few bounds.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from openai.types import completion_create_params
from openai.types.chat import completion_create_params as chat_params
from openai.types.responses import response_create_params
from pydantic import TypeAdapter

_REF = "#/components/schemas/{model}"
_BODIES: dict[str, Any] = {
    "/v1/chat/completions": chat_params.CompletionCreateParamsNonStreaming,
    "/v1/completions": completion_create_params.CompletionCreateParamsNonStreaming,
    "/v1/responses": response_create_params.ResponseCreateParamsNonStreaming,
}


def document_from_sdk() -> dict[str, Any]:
    """An OpenAPI 3.1 document of the operations that are served here and take a body, and of the models' list."""
    schemas: dict[str, Any] = {}
    paths: dict[str, Any] = {"/v1/models": {"get": {"responses": {"200": {"description": "models"}}}}}
    for path, kind in _BODIES.items():
        schema = TypeAdapter(kind).json_schema(ref_template=_REF)
        prefix = f"{path.removeprefix('/v1/').replace('/', '_')}_"
        schemas |= {prefix + name: _prefixed(one, prefix) for name, one in schema.pop("$defs", {}).items()}
        schema["properties"]["stream"] = {"type": ["boolean", "null"]}  # the type of whole answers says false alone
        body = {"required": True, "content": {"application/json": {"schema": _prefixed(schema, prefix)}}}
        paths[path] = {"post": {"requestBody": body, "responses": {"200": {"description": "answer"}}}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "OpenAI API, from the types of openai-python", "version": "1"},
        "paths": paths,
        "components": {"schemas": schemas},
    }


def write_document(file: Path) -> None:
    file.write_text(json.dumps(document_from_sdk()))


def _prefixed(schema: Any, prefix: str) -> Any:
    """The schema with its references to definitions of its own type."""
    if isinstance(schema, list):
        return [_prefixed(item, prefix) for item in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: _prefixed(value, prefix) for key, value in schema.items()}
    if isinstance(ref := schema.get("$ref"), str):
        found["$ref"] = _REF.format(model=prefix + ref.rpartition("/")[2])
    return found
