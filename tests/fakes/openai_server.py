"""A server on loopback that speaks just enough of OpenAI's API to be measured, and misbehaves as it is told to."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Script:
    """How one request is answered.

    `status` other than 200 answers with `code`; `error` is a code sent as an event in mid-stream; `cut` ends the connection
    without [DONE]; `raw` replaces the stream.
    """

    status: int = 200
    code: str | None = None
    pieces: int = 3
    usage: bool = True
    error: str | None = None
    cut: bool = False
    raw: bytes | None = None


@dataclass
class OpenAIServer:
    """Scripts of the coming requests (then plain answers), and the bodies of those that came."""

    port: int = 0
    scripts: list[Script] = field(default_factory=list)
    default: Script = field(default_factory=Script)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    models: list[str] = field(default_factory=lambda: ["stand-in"])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"


@contextmanager
def openai_server() -> Iterator[OpenAIServer]:
    """A running server, ended with the block."""
    state = OpenAIServer()

    class Handler(_Handler):
        server_state = state

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        state.port = server.server_port
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, name="openai-server")
        thread.start()
        try:
            yield state
        finally:
            server.shutdown()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    server_state: OpenAIServer

    def log_message(self, format: str, *args: Any) -> None:
        return

    def do_GET(self) -> None:
        self._send(200, json.dumps({"data": [{"id": name} for name in self.server_state.models]}).encode())

    def do_POST(self) -> None:
        state = self.server_state
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        state.bodies.append(body)
        state.headers.append(dict(self.headers.items()))
        script = state.scripts.pop(0) if state.scripts else state.default
        if script.status != 200:
            self._send(script.status, json.dumps({"error": {"code": script.code, "message": "no"}}).encode())
        else:
            self._send(200, script.raw if script.raw is not None else _stream(body, script))

    def _send(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write(body)


def _stream(body: dict[str, Any], script: Script) -> bytes:
    chat = "messages" in body
    piece = {"choices": [{"delta": {"content": "x"}} if chat else {"text": "x"}]}
    events: list[dict[str, Any]] = [{"choices": [{"delta": {"role": "assistant"}}]}, *[piece] * script.pieces]
    if script.error is not None:
        events.append({"error": {"code": script.error}})
    elif script.usage:
        words = sum(len(message["content"].split()) for message in body["messages"]) if chat else 7
        events.append(
            {"choices": [], "usage": {"prompt_tokens": 10 + 2 * words, "completion_tokens": 2 * script.pieces}}
        )
    text = b": keep-alive\n\n" + b"".join(b"data: %s\n\n" % json.dumps(event).encode() for event in events)
    return text if script.cut or script.error else text + b"data: [DONE]\n\n"
