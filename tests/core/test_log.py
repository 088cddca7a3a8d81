from __future__ import annotations

import io
import json
import logging
import os
from collections.abc import Iterator
from typing import Any

import pytest

from edgewise.core.log import CONTENT_FIELDS, SECRET_FIELDS, LogFormat, configure_logging, get_logger

TOKEN = "ew_abcd1234_" + "S" * 43


@pytest.fixture(autouse=True)
def restore_logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def logged(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def start(format: LogFormat = "json", **options: Any) -> io.StringIO:
    stream = io.StringIO()
    configure_logging(format=format, stream=stream, **options)
    return stream


def test_one_json_object_a_line() -> None:
    stream = start()
    get_logger("edgewise.test").bind(request_id="r1").info("request_done", ms=41, model="ä\nb", event="forged")
    (line,) = logged(stream)
    assert line.pop("ts").endswith("Z")
    assert line == {
        "level": "info",
        "logger": "edgewise.test",
        "event": "request_done",
        "request_id": "r1",
        "ms": 41,
        "model": "ä\nb",
    }


def test_level() -> None:
    stream = start(level="warning")
    log = get_logger("x")
    log.debug("a")
    log.info("b")
    log.warning("c")
    log.error("d")
    assert [line["event"] for line in logged(stream)] == ["c", "d"]


def test_reconfiguring_replaces_the_handler_and_leaves_others_alone() -> None:
    other = logging.NullHandler()
    logging.getLogger().addHandler(other)
    first, second = start(), start()
    get_logger("x").info("once")
    assert first.getvalue() == ""
    assert len(logged(second)) == 1
    assert other in logging.getLogger().handlers


def test_traceback() -> None:
    stream = start()
    try:
        raise ZeroDivisionError("no")
    except ZeroDivisionError:
        get_logger("x").exception("failed", step=1)
    (line,) = logged(stream)
    assert "ZeroDivisionError: no" in line["traceback"]
    assert line["level"] == "error"


@pytest.mark.parametrize("format", ["json", "console"])
def test_content_is_withheld_unless_asked_for(format: LogFormat) -> None:
    fields: dict[str, Any] = dict.fromkeys(CONTENT_FIELDS, "my private question")
    stream = start(format)
    get_logger("x").info("e", **fields, messages_count=[{"role": "user"}])
    assert "private" not in stream.getvalue()
    assert "withheld, 19 characters" in stream.getvalue()
    stream = start(format, prompts=True)
    get_logger("x").info("e", **fields)
    assert stream.getvalue().count("my private question") == len(CONTENT_FIELDS)


@pytest.mark.parametrize("format", ["json", "console"])
def test_secrets_never_appear(format: LogFormat) -> None:
    stream = start(format, prompts=True)
    get_logger("x").info("e", **dict.fromkeys(SECRET_FIELDS, "hunter2"), header=f"Bearer {TOKEN}")
    logging.getLogger("library").warning("bad key %s", TOKEN)
    assert "hunter2" not in stream.getvalue()
    assert "S" * 16 not in stream.getvalue()
    assert "ew_abcd1234_(withheld)" in stream.getvalue()


def test_console_lines_cannot_be_forged() -> None:
    stream = start("console")
    get_logger("x").warning("event", path="/a b\n12:00 ERROR forged", n=1, ok="plain")
    logging.getLogger("library").warning("first\n\x1b[31msecond")
    first, second = stream.getvalue().splitlines()
    assert first[13:] == 'WARNING event  path="/a b\\n12:00 ERROR forged" n=1 ok=plain'
    assert second.endswith(r"first\n\x1b[31msecond")


def test_a_console_line_leaves_out_what_has_no_value() -> None:
    stream = start("console")
    get_logger("edgewise.test").info("request", key=None, ms=0)
    assert stream.getvalue().endswith("request  ms=0\n")


def test_console_traceback_comes_last() -> None:
    stream = start("console")
    try:
        raise ZeroDivisionError
    except ZeroDivisionError:
        get_logger("x").exception("failed", step=1)
    lines = stream.getvalue().splitlines()
    assert lines[0].endswith("failed  step=1")
    assert lines[-1] == "ZeroDivisionError"


def test_auto_is_json_where_there_is_no_terminal() -> None:
    stream = start("auto")
    get_logger("x").info("e")
    assert logged(stream)


def test_priority_for_the_journal(monkeypatch: pytest.MonkeyPatch) -> None:
    read, write = os.pipe()
    status = os.fstat(write)
    monkeypatch.setenv("JOURNAL_STREAM", f"{status.st_dev}:{status.st_ino}")
    with os.fdopen(read) as reader:
        with os.fdopen(write, "w") as writer:
            configure_logging(format="json", stream=writer)
            get_logger("x").error("e")
            get_logger("x").info("e")
        lines = reader.read().splitlines()
    assert [line[:4] for line in lines] == ["<3>{", "<6>{"]


def test_values_that_json_does_not_know() -> None:
    stream = start()
    get_logger("x").info(
        "e",
        path=os,
        numbers={
            1,
        },
    )
    assert logged(stream)[0]["numbers"] == "{1}"
