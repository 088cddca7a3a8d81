"""What foreign suites report: failures by reason, the page's table, and the relay in between."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import httpx
import pytest

from tests.foreign import page
from tests.foreign.junit import read_junit, sort_failures
from tests.foreign.relay import Relay
from tests.foreign.suite import Explained, Report


class Echo(BaseHTTPRequestHandler):
    """Answers with what it was asked; /fault with a 500."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.send_response(500 if self.path.endswith("/fault") else 200)
        self.send_header("content-type", "application/json")
        self.send_header("x-path", self.path)
        self.send_header("x-key", self.headers.get("authorization", "none"))
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""


@pytest.fixture
def echo() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), Echo) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_the_relay_names_our_model_takes_the_key_away_and_counts(echo: str) -> None:
    with Relay(echo, "tiny") as relay:
        sent = {"model": "gpt-9", "messages": []}
        answer = httpx.post(f"{relay.url}/v1/chat/completions", json=sent, headers={"authorization": "Bearer x"})
        assert answer.json() == {"model": "tiny", "messages": []}
        assert answer.headers["x-key"] == "none"
        hasty = httpx.post(f"{relay.url}/v1/chat/completions", json={"model": "gpt-9", "timeout": 5e-324})
        assert hasty.json() == {"model": "tiny", "timeout": 60}
        assert httpx.post(f"{relay.url}/v1/responses/resp_12ab/fault", content=b"no json").status_code == 500
    assert relay.requests == 3
    assert relay.server_errors == 1
    assert relay.seen["POST", "/v1/responses/{resp}/fault", 500] == 1
    assert "no json" in relay.faults[0]


def test_a_model_and_a_prefix_are_added_where_a_suite_needs_it(echo: str) -> None:
    with Relay(echo, "tiny", add_v1=True, add_model=True) as relay:
        answer = httpx.post(f"{relay.url}/chat/completions", json={"messages": []})
    assert answer.json() == {"messages": [], "model": "tiny"}
    assert answer.headers["x-path"] == "/v1/chat/completions"


def test_failures_are_sorted_by_the_reason_that_explains_them(tmp_path: Path) -> None:
    junit = tmp_path / "result.xml"
    junit.write_text(
        "<testsuites><testsuite>"
        '<testcase classname="t.chat" name="a"/>'
        '<testcase classname="t.chat" name="b[x]"><failure message="400 - \'foo\' is bad"/></testcase>'
        '<testcase classname="t.chat" name="c"><error message="boom"/></testcase>'
        '<testcase classname="t.chat" name="d"><skipped/></testcase>'
        "</testsuite></testsuites>"
    )
    passed, failed = read_junit(junit, "t.")
    assert passed == 1
    assert set(failed) == {"chat.b[x]", "chat.c"}
    explained, unexplained = sort_failures(failed, [Explained(match=r"chat\.b.*400 - 'foo'", why="foo is no number")])
    assert explained == {"foo is no number": ("chat.b[x]",)}
    assert unexplained == {"chat.c": "boom"}


def test_the_page_keeps_its_text_and_gets_the_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "compatibility.md"
    target.write_text(f"head\n{page.BEGIN}\nold\n{page.END}\ntail\n")
    monkeypatch.setattr(page, "PAGE", target)
    report = Report(suite="s", version="1", passed=3, explained={"why": ("m.f[1]", "m.f[2]")}, requests=9)
    page.write_page([report])
    text = target.read_text()
    assert text.startswith("head\n")
    assert text.endswith("tail\n")
    assert "old" not in text
    assert "| s | 1 | 3 | 2 | 0 | 9 | 0 |" in text
    assert "- why (2 cases: `f`)" in text
    assert report.good
    assert not Report(suite="s", version="1", passed=3, requests=9, server_errors=1).good
