"""Input files line by line: every line is found where it is, and what is wrong with one is said with its number."""

from __future__ import annotations

import codecs
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edgewise.pipeline.batches.lines import MAX_ERRORS, read_line, read_lines

URL = "/v1/completions"


def line(**changes: Any) -> bytes:
    return json.dumps({"custom_id": "a", "method": "POST", "url": URL, "body": {}} | changes).encode()


def read(path: Path, **limits: int) -> tuple[list[Any], list[Any]]:
    return read_lines(path, endpoint=URL, **({"max_lines": 100, "max_line_bytes": 1000} | limits))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    st.lists(st.tuples(st.text(max_size=20), st.sampled_from(["\n", "\r\n", "\n\n", "\n  \n"])), max_size=12),
    st.booleans(),
)
def test_every_line_is_read_back_whole(tmp_path: Path, bodies: list[tuple[str, str]], ended: bool) -> None:
    written = [line(custom_id=str(number), body={"text": text}) for number, (text, _) in enumerate(bodies)]
    raw = b"".join(one + end.encode() for one, (_, end) in zip(written, bodies, strict=True))
    path = tmp_path / "in.jsonl"
    path.write_bytes(raw if ended else raw.rstrip())
    lines, errors = read(path)
    if not bodies:
        assert [error.code for error in errors] == ["empty_file"]
        return
    assert errors == []
    assert [read_line(path, one) for one in lines] == written


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        (b"nope", "invalid_json_line"),
        (b"[]", "invalid_json_line"),
        (b"\xff", "invalid_json_line"),
        (b'{"custom_id":' + b"[" * 400 + b"]" * 400 + b"}", "missing_custom_id"),
        (line(custom_id=""), "missing_custom_id"),
        (line(custom_id=5), "missing_custom_id"),
        (b'{"custom_id":"\\ud800","method":"POST","url":"/v1/completions","body":{}}', "missing_custom_id"),
        (line(custom_id="first"), "duplicate_custom_id"),
        (line(method="GET"), "invalid_method"),
        (line(url="/v1/embeddings"), "invalid_url"),
        (line(body=[]), "invalid_body"),
        (line(extra=1), "unknown_field"),
        (line(custom_id="x" * 2000), "line_too_long"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(tmp_path: Path, raw: bytes, code: str) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(line(custom_id="first") + b"\n\n" + raw + b"\n" + line(custom_id="last"))
    lines, errors = read(path)
    assert [(error.code, error.line) for error in errors] == [(code, 3)]
    assert [one.custom_id for one in lines] == ["first", "last"]


def test_too_many_lines_and_too_many_errors(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(b"\n".join(line(custom_id=str(number)) for number in range(5)))
    assert [error.code for error in read(path, max_lines=4)[1]] == ["too_many_lines"]
    assert read(path, max_lines=5)[1] == []
    path.write_bytes(b"nope\n" * 1000)
    assert len(read(path)[1]) == MAX_ERRORS


def test_a_file_may_begin_with_a_byte_order_mark_and_no_line_is_of_another_encoding(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(codecs.BOM_UTF8 + line() + b"\n" + line(custom_id="b"))
    lines, errors = read(path)
    assert errors == []
    assert [json.loads(read_line(path, one).decode())["custom_id"] for one in lines] == ["a", "b"]
    path.write_bytes(line().decode().encode("utf-16-le"))
    assert [error.code for error in read(path)[1]] == ["invalid_json_line"]
