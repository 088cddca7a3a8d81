"""Calls are found however the text is cut, and nothing that a model writes is lost."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgewise.pipeline.tools.conversation import call_text
from edgewise.pipeline.tools.scanner import CallPiece, CallScanner
from edgewise.pipeline.tools.styles import STYLES, ToolStyle

NAMES = ("get", "get_time", "put")
styles = pytest.mark.parametrize("style", STYLES.values(), ids=list(STYLES))

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text('ab"\\{}[],: \n<>é', max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text('k"\\}', max_size=3), inner, max_size=3),
    max_leaves=6,
)
arguments = st.dictionaries(st.text("xyz", min_size=1, max_size=3), values, max_size=3).map(
    lambda value: json.dumps(value, ensure_ascii=False)
)
calls = st.lists(st.tuples(st.sampled_from(NAMES), arguments), min_size=1, max_size=4)


def read(style: ToolStyle, pieces: list[str], **options: Any) -> tuple[str, list[list[str]]]:
    """Content and calls as [name, arguments]; checks that a name comes once and indices count up."""
    scanner = CallScanner(style, NAMES, **options)
    found = [one for piece in pieces for one in scanner.feed(piece)] + scanner.flush()
    content = ""
    made: list[list[str]] = []
    for one in found:
        if isinstance(one, str):
            content += one
        elif one.name is not None:
            assert one.index == len(made)
            made.append([one.name, one.arguments])
        else:
            assert one.index == len(made) - 1
            made[-1][1] += one.arguments
    assert scanner.calls == len(made)
    return content, made


def cut(text: str, places: list[int]) -> list[str]:
    edges = sorted({0, len(text), *(place % (len(text) + 1) for place in places)})
    return [text[start:end] for start, end in pairwise(edges)]


@styles
@settings(max_examples=40)
@given(wanted=calls, places=st.lists(st.integers(0, 10_000), max_size=12))
def test_what_a_model_writes_in_its_style_is_read_back(
    style: ToolStyle, wanted: list[tuple[str, str]], places: list[int]
) -> None:
    text = call_text(style, wanted)
    assert read(style, cut(text, places)) == ("", [list(call) for call in wanted])
    assert read(style, list(text)) == read(style, [text])


FRAGMENTS = [
    *("<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "<|tool_call|>", "<|/tool_call|>", "<|python_tag|>"),
    *(
        '{"name": "get", "arguments": ',
        '{"name": "get", "parameters": {"a": 1}',
        '{"arguments": {"b": [}',
        '"name": "put"',
    ),
    *(
        "{",
        "}",
        "[",
        "]",
        ",",
        ";",
        ":",
        '"',
        "\\",
        " ",
        "\n",
        "get\n",
        "get_time",
        "get[ARGS]{",
        "null",
        "1",
        "<",
        "text",
    ),
    *("<|assistant|>", '{"name": "bomb"}', '{"name": "put", "arguments": "{\\"x\\": 1}"}', "</tool", "é"),
]


@styles
@settings(max_examples=40)
@given(parts=st.lists(st.sampled_from(FRAGMENTS), max_size=14), places=st.lists(st.integers(0, 10_000), max_size=12))
def test_any_cut_of_any_text_gives_the_same(style: ToolStyle, parts: list[str], places: list[int]) -> None:
    text = "".join(parts)
    whole = read(style, [text])
    assert read(style, cut(text, places)) == whole
    assert read(style, list(text)) == whole
    if not whole[1]:
        assert whole[0] == text
    once = read(style, cut(text, places), parallel=False)
    assert once == read(style, [text], parallel=False)
    assert once[1] == whole[1][: len(once[1])]
    assert len(once[1]) <= 1


@styles
@settings(max_examples=40)
@given(before=st.text("ab <[|\n", max_size=12), wanted=calls)
def test_text_before_a_call_is_content(style: ToolStyle, before: str, wanted: list[tuple[str, str]]) -> None:
    text = f"a{before} " + call_text(style, wanted)
    if style.trigger not in text:  # an anchored style has no mark inside a text
        assert read(style, [text]) == (text, [])
        return
    first = text.index(style.trigger)
    expected = wanted if not style.anchored or style.form == "named" else []
    content, made = read(style, [text])
    assert content == text[:first].rstrip()
    assert made == [list(call) for call in expected]


HERMES = STYLES["hermes"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('<tool_call>{"arguments": {"a": 1}, "name": "get"}</tool_call>', ("", [["get", '{"a": 1}']])),
        ('<tool_call>{"name": "get"}</tool_call>', ("", [["get", "{}"]])),
        ('<tool_call>{"name": "get", "arguments": "{\\"a\\": 1}"}</tool_call>', ("", [["get", '{"a": 1}']])),
        ('<tool_call>{"name": "get", "arguments": null}</tool_call>', ("", [["get", "{}"]])),
        ('<tool_call>{"id": 7, "name": "get", "arguments": {}}</tool_call>', ("", [["get", "{}"]])),
        ('<tool_call>[{"name": "get"}, {"name": "put"}]</tool_call>', ("", [["get", "{}"], ["put", "{}"]])),
        ('<tool_call>{"name": "get"}\n{"name": "put"}</tool_call>', ("", [["get", "{}"], ["put", "{}"]])),
        # a closing brace is missing: a common slip
        ('<tool_call>{"name": "get", "arguments": {"a": 1}</tool_call> ok', (" ok", [["get", '{"a": 1}']])),
        ('<tool_call>{"name": "get", "arguments": {"a": 1', ("", [["get", '{"a": 1']])),
        ('<tool_call>{"name": "ge', ('<tool_call>{"name": "ge', [])),
        ("1 < 2 <tool", ("1 < 2 <tool", [])),
        ('<think>{"a"}</think>\n\n<tool_call>{"name": "put"}</tool_call>\n', ('<think>{"a"}</think>', [["put", "{}"]])),
        ('<tool_call>{"name": "put"}</tool_call>\nDone. ', ("\nDone.", [["put", "{}"]])),
    ],
)
def test_variants(text: str, expected: tuple[str, list[list[str]]]) -> None:
    assert read(HERMES, [text]) == expected
    assert read(HERMES, list(text)) == expected


def test_arguments_come_while_they_are_written() -> None:
    scanner = CallScanner(HERMES, NAMES)
    assert scanner.feed('<tool_call>\n{"name": "get", "ar') == [CallPiece(0, "get", "")]
    assert scanner.feed('guments": {"a": "x') == [CallPiece(0, None, '{"a": "x')]
    assert scanner.feed("y") == [CallPiece(0, None, "y")]
    assert scanner.feed('"}}') == [CallPiece(0, None, '"}')]
    assert scanner.feed("\n</tool_call>") == []


def test_a_json_answer_that_is_no_call_is_text_in_the_llama_style() -> None:
    text = '{"city": "Paris", "name": "Paris"}'
    assert read(STYLES["llama"], list(text)) == (text, [])
    two = '{"name": "get", "parameters": {}}; {"name": "put", "parameters": {"a": [1]}}'
    assert read(STYLES["llama"], list(two)) == ("", [["get", "{}"], ["put", '{"a": [1]}']])
    assert read(STYLES["llama"], ["<|python_tag|>" + two])[1][1] == ["put", '{"a": [1]}']
