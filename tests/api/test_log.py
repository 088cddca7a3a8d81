"""One line a request, without its text unless that is asked for."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from edgewise.core.log import LineFormatter, configure_logging
from tests.api.harness import CHAT, COMPLETIONS, hello, make_api, prompt
from tests.api.test_auth import Keys
from tests.fakes.engine import FakeEngine, Fault
from tests.fakes.serving import says


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    stream = io.StringIO()
    root = logging.getLogger()
    level = root.level
    configure_logging(format="json", stream=stream)
    yield stream
    for handler in list(root.handlers):
        if isinstance(handler.formatter, LineFormatter):
            root.removeHandler(handler)
    root.setLevel(level)


def lines(log: io.StringIO) -> list[dict[str, Any]]:
    return [line for line in map(json.loads, log.getvalue().splitlines()) if line["event"] == "request"]


async def test_one_line_a_request(log: io.StringIO) -> None:
    api = make_api(FakeEngine(script=says("Paris is the answer")), keys=Keys())
    response = await api.post(CHAT, hello(), headers={"authorization": "Bearer good"})
    (line,) = lines(log)
    assert line["request_id"] == response.headers["x-request-id"] == response.json()["edgewise"]["request_id"]
    assert (line["method"], line["path"], line["status"], line["key"]) == ("POST", CHAT, 200, "app")
    assert (line["model"], line["prompt_tokens"], line["completion_tokens"]) == ("tiny", 21, 20)
    assert line["error"] is None
    assert line["ms"] >= 0
    assert "Paris" not in log.getvalue()
    assert "good" not in log.getvalue()


async def test_refusals_and_faults_are_named(log: io.StringIO) -> None:
    api = make_api(FakeEngine(script=says("hello"), fault=Fault(0, 2)))
    await api.post(CHAT, hello(stream=True))
    await api.post(CHAT, hello(temperature=9))
    await api.get("/nope")
    await api.get("/v1/models", headers={"authorization": "Bearer wrong-key-of-someone"})
    await api.get("/healthz")
    found = [(line["status"], line["error"]) for line in lines(log)]
    assert found == [
        (200, "engine_error"),
        (400, "invalid_value"),
        (404, "unknown_url"),
        (401, "invalid_api_key"),
    ]
    assert "wrong-key" not in log.getvalue()


@pytest.mark.parametrize("stream", [False, True])
async def test_text_is_logged_only_if_service_and_log_both_allow_it(stream: bool, log: io.StringIO) -> None:
    api = make_api(FakeEngine(script=says("the answer")), log_content=True)
    await api.post(CHAT, hello(stream=stream))
    assert "the answer" not in log.getvalue()
    configure_logging(format="json", stream=log, prompts=True)
    await api.post(CHAT, hello(stream=stream))
    await api.post(COMPLETIONS, prompt(stream=stream, n=2))
    _, chat, text = lines(log)
    assert chat["messages"] == [{"role": "user", "content": "hi"}]
    assert chat["answer"] == {"0": "the answer"}
    assert (text["prompts"], text["answer"]) == (["hi"], {"0": "the answer", "1": "the answer"})
