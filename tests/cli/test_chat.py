from __future__ import annotations

import base64
import http.server
import json
import os
import pty
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from edgewise.cli.chat_client import Answer, AnswerBroken, ChatClient, NoService, ServiceRefusedError
from edgewise.core.errors import EngineUnavailable, NotFound
from tests.cli.terminal import drain, read_until

Run = Callable[..., "subprocess.CompletedProcess[str]"]
USAGE = {"prompt_tokens": 3, "completion_tokens": 2}


def event(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


GOOD = [
    event({"role": "assistant", "content": ""}),
    event({"content": "Pa"}),
    event({"content": "ris ✓"}),
    event({}, "stop"),
    {"choices": [], "usage": USAGE, "edgewise": {"stages": []}},
]


@dataclass
class Script:
    """What the service answers, and what it was asked."""

    events: list[Any] = field(default_factory=lambda: list(GOOD))
    status: int = 200
    error: Any = None
    models: list[str] = field(default_factory=lambda: ["starter"])
    done: bool = True
    asked: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    url: str = ""


@pytest.fixture
def service() -> Iterator[Script]:
    script = Script()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.reply(200, json.dumps({"data": [{"id": name} for name in script.models]}).encode())

        def do_POST(self) -> None:
            script.headers.append(dict(self.headers))
            script.asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            if script.status != 200:
                self.reply(script.status, json.dumps({"error": script.error}).encode())
                return
            lines = [": keep-alive\n\n", *(f"data: {json.dumps(one)}\n\n" for one in script.events)]
            self.reply(200, "".join([*lines, "data: [DONE]\n\n" if script.done else ""]).encode())

        def reply(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None: ...

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        script.url = f"http://127.0.0.1:{server.server_port}"
        yield script
        server.shutdown()
        thread.join()


def ask(url: str, **options: Any) -> tuple[list[str], Answer]:
    answer = Answer()
    with ChatClient(url, key=options.pop("key", None)) as client:
        return list(client.stream([{"role": "user", "content": "?"}], answer, **options)), answer


def test_pieces_come_as_they_are_sent(service: Script) -> None:
    pieces, answer = ask(service.url + "/v1/", model="m", temperature=None, key="ew_k")
    assert pieces == ["Pa", "ris ✓"]
    assert (answer.text, answer.finish_reason, answer.usage) == ("Paris ✓", "stop", USAGE)
    assert answer.receipt == {"stages": []}
    assert service.asked[0]["stream"] is True
    assert "temperature" not in service.asked[0]
    assert service.headers[0]["Authorization"] == "Bearer ew_k"


def test_no_service() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{probe.getsockname()[1]}"
    with pytest.raises(NoService, match=rf"(?s)no Edgewise service answers at {url}.*edgewise serve"):
        ask(url)


@pytest.mark.parametrize("url", ["htp://x", "http://", "nonsense"])
def test_an_address_that_is_none(url: str) -> None:
    with pytest.raises((NoService, AnswerBroken)):
        ask(url)


@pytest.mark.parametrize(
    ("status", "kind", "words"),
    [
        (400, ServiceRefusedError, "too hot"),
        (401, ServiceRefusedError, "edgewise keys new"),
        (404, NotFound, "too hot"),
        (429, EngineUnavailable, "too hot"),
        (503, EngineUnavailable, "too hot"),
        (500, ServiceRefusedError, "too hot"),
    ],
)
def test_errors_of_the_service(service: Script, status: int, kind: type[Exception], words: str) -> None:
    service.status, service.error = status, {"message": "too hot", "code": "x"}
    with pytest.raises(kind, match=words):
        ask(service.url)


@pytest.mark.parametrize("error", [None, "text", ["x"]])
def test_errors_in_another_shape(service: Script, error: object) -> None:
    service.status, service.error = 500, error
    with pytest.raises(ServiceRefusedError):
        ask(service.url)


def test_an_error_in_the_stream(service: Script) -> None:
    service.events = [GOOD[1], {"error": {"message": "engine died"}}]
    with pytest.raises(ServiceRefusedError, match="engine died"):
        ask(service.url)


@pytest.mark.parametrize("done", [True, False])
def test_a_stream_that_ends_early(service: Script, done: bool) -> None:
    service.events, service.done = GOOD[:2], done
    with pytest.raises(AnswerBroken, match="ended before the answer"):
        ask(service.url)


def test_a_proxy_from_the_environment_is_not_asked_for_loopback(
    service: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    monkeypatch.delenv("NO_PROXY", raising=False)
    assert ask(service.url)[0] == ["Pa", "ris ✓"]


def test_one_question(service: Script, run: Run) -> None:
    done = run(
        "chat", "Capital of France?", "--url", service.url, "--system", "Be brief.", "--max-tokens", "9", "--seed", "1"
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "Paris ✓\n", "")
    (body,) = service.asked
    assert body["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Capital of France?"},
    ]
    assert (body["model"], body["max_completion_tokens"], body["seed"]) == ("starter", 9, 1)
    assert "temperature" not in body  # the model's own recommendation holds


def test_a_question_through_a_pipe_as_json(service: Script, run: Run) -> None:
    done = run("chat", "--json", "--model", "m", stdin="Capital?\n", EDGEWISE_URL=service.url, EDGEWISE_API_KEY="ew_x")
    shown = json.loads(done.stdout)
    assert (shown["text"], shown["finish_reason"], shown["usage"]) == ("Paris ✓", "stop", USAGE)
    assert service.asked[0]["messages"] == [{"role": "user", "content": "Capital?"}]
    assert service.headers[0]["Authorization"] == "Bearer ew_x"


def test_pictures_are_shown_with_a_question(service: Script, run: Run, tmp_path: Path) -> None:
    """What the receipt warns of is told to the person, apart from the answer."""
    path = tmp_path / "a.png"
    path.write_bytes(b"a picture")
    service.events = [*GOOD[:-1], {"choices": [], "usage": USAGE, "edgewise": {"warnings": ["It has no eyes."]}}]
    done = run("chat", "What is it?", "--image", str(path), "--url", service.url)
    assert (done.returncode, done.stdout, done.stderr) == (0, "Paris ✓\n", "It has no eyes.\n")
    (picture, question) = service.asked[0]["messages"][0]["content"]
    assert base64.b64decode(picture["image_url"]["url"].partition(",")[2]) == b"a picture"
    assert question == {"type": "text", "text": "What is it?"}
    missing = run("chat", "What is it?", "--image", str(tmp_path / "none.png"), "--url", service.url)
    assert missing.returncode == 2
    assert "does not exist" in missing.stderr


def test_no_service_is_one_clear_line(run: Run) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    done = run("chat", "x", EDGEWISE_PORT=port)
    assert done.returncode == 3
    assert len(done.stderr.splitlines()) == 1
    assert "systemctl start edgewise-device" in done.stderr


def test_a_service_without_models(service: Script, run: Run) -> None:
    service.models = []
    done = run("chat", "x", "--url", service.url)
    assert (done.returncode, done.stdout) == (5, "")
    assert "edgewise models pull" in done.stderr


def test_a_conversation_on_a_terminal(service: Script) -> None:
    service.events = [event({"content": "a\x1b[2Jb"}), event({}, "stop")]
    shown = converse(service.url, ["one", "two", "/clear", "", "/help", "three", "/exit"])
    assert shown.count("/exit or Ctrl-D leaves") == 2
    assert "\x1b[2J" not in shown
    assert "a[2Jb" in shown
    sent = [[message["content"] for message in body["messages"]] for body in service.asked]
    assert sent == [["one"], ["one", "a\x1b[2Jb", "two"], ["three"]]


def test_a_conversation_goes_on_after_an_error(service: Script) -> None:
    service.status, service.error = 429, {"message": "queue is full"}
    shown = converse(service.url, ["one", "two", "/exit"])
    assert shown.count("queue is full") == 2
    assert [len(body["messages"]) for body in service.asked] == [1, 1]


def converse(url: str, lines: list[str]) -> str:
    """Type lines into `edgewise chat` on a pseudo-terminal, each after the prompt; return what the terminal showed."""
    master, slave = pty.openpty()
    command = [sys.executable, "-m", "edgewise.cli.main", "chat", "--url", url]
    shown = b""
    with subprocess.Popen(
        command, stdin=slave, stdout=slave, stderr=slave, env={**os.environ, "TERM": "dumb"}
    ) as process:
        os.close(slave)
        for line in lines:
            shown += read_until(master, b"> ")
            os.write(master, line.encode() + b"\n")
        assert process.wait(timeout=120) == 0
        shown += drain(master)
    os.close(master)
    return shown.decode()
