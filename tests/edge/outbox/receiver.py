"""A real receiver of webhooks on loopback: answers what it is told to, and remembers what it got."""

from __future__ import annotations

import http.server
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Delivery:
    """One POST as it arrived; header names in lower case."""

    headers: dict[str, str]
    body: bytes

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]

    @property
    def event(self) -> dict[str, Any]:
        event: dict[str, Any] = json.loads(self.body)
        return event


@dataclass
class Receiver:
    """Attributes:
    answers: Statuses of the next answers; 200 after them.
    pause_s: Time before every answer.
    got: Every POST, in order of arrival.
    """

    url: str = ""
    answers: list[int] = field(default_factory=list)
    pause_s: float = 0.0
    got: list[Delivery] = field(default_factory=list)

    @property
    def acknowledged(self) -> list[Delivery]:
        """Those that this receiver took for new ones, by their id, as one that never does anything twice."""
        return list({delivery.id: delivery for delivery in self.got}.values())

    def wait(self, count: int, seconds: float = 60.0) -> None:
        limit = time.monotonic() + seconds
        while len(self.got) < count:
            assert time.monotonic() < limit, f"{len(self.got)} of {count} deliveries came"
            time.sleep(0.02)


@contextmanager
def receiving() -> Iterator[Receiver]:
    """A receiver, ended when the block is left."""
    receiver = Receiver()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            receiver.got.append(Delivery({name.lower(): value for name, value in self.headers.items()}, body))
            status = receiver.answers.pop(0) if receiver.answers else 200
            time.sleep(receiver.pause_s)
            self.send_response(status)
            if 300 <= status < 400:
                self.send_header("location", f"{receiver.url}/elsewhere")
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            del format, args

        def handle(self) -> None:
            try:
                super().handle()
            except ConnectionError:  # the sender has given up waiting
                return

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        receiver.url = f"http://127.0.0.1:{server.server_address[1]}/hook"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield receiver
        finally:
            server.shutdown()
            thread.join()
