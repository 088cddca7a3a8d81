"""Schemas: what can be enforced is, by answers drawn at random; what cannot is refused by the keyword's name and path."""

from __future__ import annotations

import json
import re
from calendar import isleap
from typing import Any

import jsonschema
import pytest

from edgewise.core.errors import InvalidRequest, UnsupportedField
from edgewise.pipeline.structured.check import GrammarCheck
from edgewise.pipeline.structured.dates import with_dates
from edgewise.pipeline.structured.lark import constraint
from edgewise.pipeline.structured.rules import rules_of
from edgewise.pipeline.structured.schema import ANNOTATIONS, KEYWORDS, check_schema
from edgewise.pipeline.task import AnswerFormat
from tests.fakes.text import ByteTokenizer
from tests.pipeline.structured.walking import BYTES, walk

TEXT = {"type": "string", "maxLength": 5}
COUNT = {"type": "integer", "minimum": -20, "maximum": 300}


def closed(**properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


CORPUS: dict[str, dict[str, Any]] = {
    "flat": closed(name=TEXT, age=COUNT, ok={"type": "boolean"}, none={"type": "null"}),
    "enum behind a reference": {
        **closed(c={"$ref": "#/$defs/c"}),
        "$defs": {"c": {"enum": ["rot", "grün", "蓝", 'a"\\']}},
    },
    "definitions": {**closed(a={"$ref": "#/definitions/a"}), "definitions": {"a": COUNT}},
    "recursion": {
        "$ref": "#/$defs/tree",
        "$defs": {
            "tree": closed(
                value={"type": "boolean"}, children={"type": "array", "items": {"$ref": "#/$defs/tree"}, "maxItems": 1}
            )
        },
    },
    "arrays": closed(a={"type": "array", "items": COUNT, "minItems": 2, "maxItems": 4}),
    "tuples": closed(a={"type": "array", "prefixItems": [COUNT, TEXT], "items": False, "minItems": 2}),
    "anyOf": closed(a={"anyOf": [COUNT, {"type": "null"}, closed(b=TEXT)]}),
    "oneOf that exclude each other": closed(a={"oneOf": [{"type": "boolean"}, {"type": "null"}]}),
    "allOf": closed(a={"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 7}]}),
    "several types": closed(a={"type": ["boolean", "null"]}),
    "const": closed(a={"const": {"b": [1, "é"]}}, b={"const": "x\ny"}),
    "pattern": closed(a={"type": "string", "pattern": "^[A-Z]{2}-\\d{1,4}$"}),
    "optional properties": {
        "type": "object",
        "properties": {"a": COUNT, "b": TEXT},
        "required": ["b"],
        "additionalProperties": False,
    },
    "a map": {
        "type": "object",
        "patternProperties": {"^k[0-9]$": COUNT},
        "additionalProperties": False,
        "maxProperties": 2,
    },
    "a map of anything, at least one": {
        "type": "object",
        "additionalProperties": {"type": "boolean"},
        "minProperties": 1,
        "maxProperties": 3,
    },
    "numbers": closed(
        a={"type": "integer", "multipleOf": 5, "minimum": 0, "maximum": 100},
        b={"type": "integer", "exclusiveMinimum": 1, "exclusiveMaximum": 4},
    ),
    "lengths": closed(a={"type": "string", "minLength": 2, "maxLength": 3}),
    "formats": closed(
        a={"type": "string", "format": "date"},
        b={"type": "string", "format": "uuid"},
        c={"type": "string", "format": "ipv4"},
        d={"type": "string", "format": "date-time"},
    ),
    "a top level that is no object": {"type": "array", "items": {"enum": [1, "zwei", None]}, "maxItems": 3},
    "annotations": {
        "title": "T",
        "description": "d",
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **closed(a=COUNT),
    },
}


@pytest.fixture(scope="module")
def check() -> GrammarCheck:
    return GrammarCheck(ByteTokenizer())


@pytest.mark.parametrize("name", CORPUS)
def test_whatever_chance_writes_validates(name: str, check: GrammarCheck) -> None:
    schema = CORPUS[name]
    rules = constraint(rules_of(AnswerFormat(kind="json_schema", value=schema)))
    check.require(rules, "p", "it")
    validator = jsonschema.Draft202012Validator(schema, format_checker=jsonschema.FormatChecker())
    answers = {walk(rules, seed) for seed in range(6)}
    for answer in answers:
        validator.validate(json.loads(answer))


def test_the_corpus_has_every_keyword() -> None:
    def keywords(schema: Any) -> set[str]:
        if isinstance(schema, list):
            return set().union(*map(keywords, schema)) if schema else set()
        if not isinstance(schema, dict):
            return set()
        return set(schema).union(*map(keywords, schema.values())) if schema else set()

    assert set().union(*map(keywords, CORPUS.values())) >= KEYWORDS


NOT_ENFORCED = [
    *("uniqueItems", "contains", "minContains", "maxContains", "propertyNames", "not", "if", "then", "else"),
    *("dependentRequired", "dependentSchemas", "dependencies", "unevaluatedProperties", "unevaluatedItems", "nullable"),
    *(
        "additionalItems",
        "contentEncoding",
        "contentMediaType",
        "$dynamicRef",
        "$anchor",
        "x-guidance",
        "maxlength",
        "discriminator",
    ),
]


@pytest.mark.parametrize("keyword", NOT_ENFORCED)
def test_a_keyword_that_is_not_enforced_is_refused_with_its_path(keyword: str) -> None:
    inner = {"type": "array", "items": {"anyOf": [{"type": "null"}, {keyword: True}]}}
    schema = {"type": "object", "properties": {"a.b": inner}, "$defs": {"unused": {}}}
    with pytest.raises(UnsupportedField, match=f"'{keyword}'".replace("$", r"\$")) as caught:
        check_schema(schema, "s")
    assert caught.value.param == f"s.properties.a.b.items.anyOf[1].{keyword}"
    assert keyword not in KEYWORDS | ANNOTATIONS


@pytest.mark.parametrize(
    ("schema", "param"),
    [
        ({"type": "text"}, "s.type"),
        ({"type": []}, "s.type"),
        ({"enum": []}, "s.enum"),
        ({"$ref": "https://example.org/x"}, "s.$ref"),
        ({"items": [{}]}, "s.items"),
        ({"exclusiveMinimum": True}, "s.exclusiveMinimum"),
        ({"maximum": 10**30}, "s.maximum"),
        ({"minLength": -1}, "s.minLength"),
        ({"required": "a"}, "s.required"),
        ({"format": "phone"}, "s.format"),
        ({"properties": []}, "s.properties"),
        ({"anyOf": {}}, "s.anyOf"),
        ({"type": "object", "minProperties": 2}, "s.minProperties"),
        ({"properties": {f"p{i}": {} for i in range(257)}}, "s.properties"),
        ({"enum": [*range(2001)]}, "s"),
        ({"multipleOf": 0}, "s.multipleOf"),
        ({"multipleOf": 2**31}, "s.multipleOf"),
        ({"multipleOf": 9973, "allOf": [{"multipleOf": 9967}]}, "s.allOf[0]"),
        ({"multipleOf": 0.001, "allOf": [{"multipleOf": 997}]}, "s.allOf[0]"),
        ({"enum": ["x" * 100_001]}, "s"),
    ],
)
def test_malformed_and_oversized_keywords_are_named(schema: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_schema(schema, "s")
    assert caught.value.param == param


def deep(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "null"}
    for _ in range(levels):
        schema = closed(a=schema)
    return schema


HOSTILE: dict[str, AnswerFormat] = {
    "deep": AnswerFormat(kind="json_schema", value=deep(49)),
    "wide": AnswerFormat(kind="json_schema", value={"anyOf": [closed(a={"const": i}) for i in range(6000)]}),
    "a reference to itself": AnswerFormat(kind="json_schema", value={"$ref": "#"}),
    "a ring of references": AnswerFormat(
        kind="json_schema",
        value={"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
    ),
    "no such reference": AnswerFormat(kind="json_schema", value={"$ref": "#/$defs/a"}),
    "a product of cases": AnswerFormat(
        kind="json_schema",
        value={"allOf": [{"anyOf": [closed(**{f"a{i}{j}": {}}) for i in range(8)]} for j in range(6)]},
    ),
    "nothing": AnswerFormat(kind="json_schema", value={"allOf": [{"type": "null"}, {"type": "string"}]}),
    "cases that overlap": AnswerFormat(kind="json_schema", value={"oneOf": [{"type": "integer"}, {"type": "number"}]}),
    "look-ahead": AnswerFormat(kind="json_schema", value={"type": "string", "pattern": "(?=a)b"}),
    "brackets": AnswerFormat(kind="regex", value="(" * 5000 + "a" + ")" * 5000),
    "open bracket": AnswerFormat(kind="regex", value="(a"),
    "back reference": AnswerFormat(kind="regex", value=r"(a)\1"),
    "a long expression": AnswerFormat(kind="regex", value="a" * 10_001),
    "no end": AnswerFormat(kind="grammar", value='start: "a" start'),
    "left recursion without end": AnswerFormat(kind="grammar", value="start: start"),
    "no start": AnswerFormat(kind="grammar", value='begin: "a"'),
    "deep grammar": AnswerFormat(kind="grammar", value="start: " + "(" * 20_000 + '"a"' + ")" * 20_000),
    "gbnf": AnswerFormat(kind="grammar", value='root ::= "a"'),
    "json inside": AnswerFormat(kind="grammar", value='start: %json {"x-guidance": {"lenient": true}}'),
    "no choice": AnswerFormat(kind="choice", value=[]),
    "numbers to choose": AnswerFormat(kind="choice", value=[1, 2]),
}


@pytest.mark.parametrize("name", sorted(set(HOSTILE) - {"no end"}))
def test_hostile_forms_are_refused_before_anything_is_queued(name: str, check: GrammarCheck) -> None:
    form = HOSTILE[name]
    with pytest.raises(InvalidRequest) as caught:
        check.require(constraint(rules_of(form)), form.param, "it")
    assert caught.value.param is not None
    assert caught.value.param.startswith("response_format")
    assert len(caught.value.message) < 600


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        ("(a|b)*a(a|b){20}", "ab" * 12),
        ("(a?){200}a{200}", "a" * 250),
        ("(.*a.*b){30}", "xaxb" * 30),
        ("[ab]*a[ab]{200}", "ba" * 150),
    ],
)
def test_expressions_that_explode_elsewhere_are_followed_here(expression: str, text: str) -> None:
    rules = constraint(rules_of(AnswerFormat(kind="regex", value=expression)))
    assert walk(rules, 1, begun=[BYTES + byte for byte in text.encode()], eager=True).startswith(text.encode())


def test_an_expression_beyond_the_limits_fails_by_name() -> None:
    rules = constraint(rules_of(AnswerFormat(kind="regex", value="((a{1,100}){1,100}){1,100}")))
    with pytest.raises(AssertionError, match="too many expressions"):
        walk(rules, 1, begun=[BYTES + ord("a")] * 300)


def test_dates_exist() -> None:
    schema = {"type": "string", "format": "date"}
    (pattern,) = with_dates(schema)["allOf"]
    leap = [f"{year:04}-02-29" for year in range(1, 10_000)]
    assert [re.search(pattern["pattern"], day) is not None for day in leap] == [
        isleap(year) for year in range(1, 10_000)
    ]
    assert with_dates({"properties": {"format": {"const": {"format": "date"}}}}) == {
        "properties": {"format": {"const": {"format": "date"}}}
    }


@pytest.mark.parametrize(
    ("form", "texts"),
    [
        (AnswerFormat(kind="choice", value=["ja", "nein", 'q"\n', "é"]), {"ja", "nein", 'q"\n', "é"}),
        (AnswerFormat(kind="regex", value=r"\d/[ab]"), {f"{d}/{c}" for d in range(10) for c in "ab"}),
        (
            AnswerFormat(kind="grammar", value='start: a "+" a\na: "1" | "2" // digits'),
            {f"{a}+{b}" for a in "12" for b in "12"},
        ),
    ],
)
def test_other_forms(form: AnswerFormat, texts: set[str]) -> None:
    rules = constraint(rules_of(form))
    drawn = {walk(rules, seed).decode() for seed in range(24)}
    assert drawn <= texts
    assert len(drawn) > 1


def test_json_objects_are_objects() -> None:
    rules = constraint(rules_of(AnswerFormat(kind="json_object")))
    assert isinstance(json.loads(walk(rules, 3, eager=True)), dict)
