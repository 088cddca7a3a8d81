"""Answers held to JSON schemas, random seeds, the real API: all validate; what cannot be enforced is refused by name."""

from __future__ import annotations

import json
import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import jsonschema

from tests.accept.line import Line, Verdict, main, progress
from tests.e2e.service import STARTER, running

TEXT = {"type": "string", "maxLength": 12}
TOKENS = 600
AT_ONCE = 8


def closed(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


# Every answer can end within TOKENS, so that the figure tells of validity alone: texts, lists and numbers have bounds.
SCHEMAS: dict[str, dict[str, Any]] = {
    "person": closed(name=TEXT, age={"type": "integer", "minimum": 0, "maximum": 120}, member={"type": "boolean"}),
    "enum behind a reference": {
        **closed(colour={"$ref": "#/$defs/colour"}, second={"$ref": "#/$defs/colour"}),
        "$defs": {"colour": {"enum": ["rot", "grün", "蓝色", "🟥", 'quo"ted', "back\\slash"]}},
    },
    "list of objects": closed(
        items={
            "type": "array",
            "items": closed(sku={"type": "string", "pattern": "^[A-Z]{3}-[0-9]{4}$"}, count={"enum": [1, 2, 5, 10]}),
            "minItems": 1,
            "maxItems": 3,
        }
    ),
    "recursion": {
        "$ref": "#/$defs/node",
        "$defs": {
            "node": {
                **closed(value={"type": "integer", "minimum": -9, "maximum": 9}),
                "properties": {
                    "value": {"type": "integer", "minimum": -9, "maximum": 9},
                    "left": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/leaf"}]},
                },
                "required": ["value", "left"],
            },
            "leaf": closed(leaf={"const": True}),
        },
    },
    "formats": closed(
        day={"type": "string", "format": "date"},
        id={"type": "string", "format": "uuid"},
        address={"type": "string", "format": "ipv4"},
    ),
    "union": closed(value={"anyOf": [{"type": "null"}, TEXT, closed(x={"type": "boolean"})]}),
    "tuple": {"type": "array", "prefixItems": [TEXT, {"enum": [0, 1]}], "items": False, "minItems": 2},
    "numbers": closed(
        step={"type": "integer", "multipleOf": 25, "minimum": 0, "maximum": 1000},
        open={"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 10},
    ),
}

NOT_ENFORCED: dict[str, Any] = {
    "uniqueItems": True,
    "not": {"const": 1},
    "if": {"const": 1},
    "contains": {"const": 1},
    "propertyNames": {"maxLength": 3},
    "dependentRequired": {"a": ["b"]},
    "unevaluatedProperties": False,
    "nullable": True,
    "maxlength": 3,
    "x-guidance": {"lenient": True},
}


def body(schema: dict[str, Any], seed: int) -> dict[str, Any]:
    return {
        "model": STARTER,
        "messages": [{"role": "user", "content": "Answer with some JSON."}],
        "response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}},
        "max_completion_tokens": TOKENS,
        "temperature": 1.0 if seed % 2 else 1.8,
        "seed": seed,
    }


def refusals(http: httpx.Client) -> list[str]:
    """Keywords whose refusal does not name them and their place."""
    wrong = []
    for keyword, value in NOT_ENFORCED.items():
        response = http.post("/v1/chat/completions", json=body(closed(a={"type": "array", keyword: value}), 0))
        error = response.json().get("error", {})
        path = f"response_format.json_schema.schema.properties.a.{keyword}"
        if response.status_code != 400 or error.get("param") != path or keyword not in error.get("message", ""):
            wrong.append(f"{keyword}: {response.status_code} {error}")
    return wrong


def outcome(http: httpx.Client, name: str, seed: int) -> dict[str, Any]:
    """One answer: whether it ended, and what is wrong with it if it did."""
    answer = http.post("/v1/chat/completions", json=body(SCHEMAS[name], seed)).raise_for_status().json()
    (choice,) = answer["choices"]
    ended = choice["finish_reason"] == "stop"
    text = choice["message"]["content"]
    problem = problem_of(text, SCHEMAS[name]) if ended else None
    progress(f"{name}, seed {seed}: {problem or choice['finish_reason']}")
    return {"schema": name, "seed": seed, "ended": ended, "problem": problem, "text": text}


def measure(count: int) -> Verdict:
    rng = random.Random(3)
    trials = [(list(SCHEMAS)[trial % len(SCHEMAS)], rng.randrange(2**32)) for trial in range(count)]
    with running() as service, httpx.Client(base_url=service.url, timeout=600, trust_env=False) as http:
        wrong = refusals(http)
        with ThreadPoolExecutor(AT_ONCE) as threads:
            answers = list(threads.map(lambda trial: outcome(http, *trial), trials))
    ended = [answer for answer in answers if answer["ended"]]
    invalid = [answer for answer in ended if answer["problem"] is not None]
    figure = (
        f"{len(ended) - len(invalid)} of {len(ended)} ended answers validate, {count - len(ended)} of {count} did not end; "
        f"{len(NOT_ENFORCED) - len(wrong)} of {len(NOT_ENFORCED)} keywords refused by name"
    )
    passed = not invalid and len(ended) == count and not wrong
    return Verdict(figure=figure, passed=passed, details={"invalid": invalid, "refusals": wrong})


def problem_of(text: str, schema: dict[str, Any]) -> str | None:
    try:
        jsonschema.Draft202012Validator(schema, format_checker=jsonschema.FormatChecker()).validate(json.loads(text))
    except (ValueError, jsonschema.ValidationError) as error:
        return str(error).split("\n", 1)[0]
    return None


LINE = Line(
    number=3,
    title="Schema-constrained answers with random seeds validate; keywords that cannot be enforced are answered 400 by name",
    bar="all answers end and validate; every keyword refused with its path",
    count=200,
    small=8,
    measure=measure,
)

if __name__ == "__main__":
    main(LINE, "tests.accept.engine_3")
