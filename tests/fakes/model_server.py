"""A real HTTP server on loopback that serves files well, or as badly as it is told to."""

from __future__ import annotations

import hashlib
import re
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Page:
    """What lies at one path.

    `cuts`: bytes to send of each successive answer before the connection is closed (then whole answers again).
    `slow`: seconds of pause before every 64 KiB.
    `statuses`: answered first, one a request, each with `extra` headers.
    `auth`: the Authorization header that is asked for; others get `denied`, a status and its headers.
    """

    body: bytes = b""
    etag: str | None = '"v1"'
    ranges: bool = True
    length: int | None = None
    location: str | None = None
    cuts: list[int] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)
    extra: dict[str, str] = field(default_factory=dict)
    ignore_if_range: bool = False
    wrong_start: int = 0
    chunked: bool = False
    slow: float = 0.0
    auth: str | None = None
    denied: tuple[int, dict[str, str]] = (401, {})


@dataclass
class ModelServer:
    """Pages by path, the headers of every request in order, and whether a client hung up in the middle."""

    port: int = 0
    pages: dict[str, Page] = field(default_factory=dict)
    requests: list[tuple[str, Mapping[str, str]]] = field(default_factory=list)
    sent: int = 0
    closed: threading.Event = field(default_factory=threading.Event)

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def url(self, path: str) -> str:
        return f"{self.origin}{path}"

    def add_wheel(self, project: str, filename: str, data: bytes) -> None:
        """Publishes a wheel on the simple index at /simple/ (PEP 503)."""
        digest = hashlib.sha256(data).hexdigest()
        link = f'<a href="/wheels/{filename}#sha256={digest}">{filename}</a>'
        index = self.pages.setdefault(f"/simple/{project}/", Page(extra={"Content-Type": "text/html"}))
        index.body += f"<!DOCTYPE html><html><body>{link}</body></html>".encode()
        self.pages[f"/wheels/{filename}"] = Page(body=data)


@contextmanager
def serving() -> Iterator[ModelServer]:
    """A running server, ended with the block."""
    state = ModelServer()

    class Handler(_Handler):
        server_state = state

    with _Server(("127.0.0.1", 0), Handler) as server:
        state.port = server.server_port
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, name="model-server")
        thread.start()
        try:
            yield state
        finally:
            server.shutdown()
            thread.join()


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], ConnectionError):  # a client that was killed is what some tests want
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_state: ModelServer

    def log_message(self, format: str, *args: Any) -> None:
        return

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        self.server_state.requests.append((self.path, dict(self.headers.items())))
        page = self.server_state.pages.get(self.path.split("?", 1)[0])
        if page is None:
            self._answer(404, b"", {})
        elif page.statuses:
            self._answer(page.statuses.pop(0), b"", dict(page.extra))
        elif page.auth is not None and self.headers.get("Authorization") != page.auth:
            self._answer(page.denied[0], b"", page.denied[1])
        elif page.location is not None:
            self._answer(302, b"", {"Location": page.location, **page.extra})
        else:
            self._serve(page)

    def _serve(self, page: Page) -> None:
        headers = dict(page.extra)
        if page.etag is not None:
            headers["ETag"] = page.etag
        asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        condition = self.headers.get("If-Range")
        fresh = condition is None or condition == page.etag or page.ignore_if_range
        start = int(asked[1]) if asked and page.ranges and fresh else 0
        if start > len(page.body):
            self._answer(416, b"", {"Content-Range": f"bytes */{len(page.body)}"})
        elif start:
            shown = start + page.wrong_start
            headers["Content-Range"] = f"bytes {shown}-{len(page.body) - 1}/{len(page.body)}"
            self._answer(206, page.body[shown:], headers, page)
        else:
            self._answer(200, page.body, headers, page)

    def _answer(self, status: int, body: bytes, headers: dict[str, str], page: Page | None = None) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if page is not None and page.chunked:
            self.send_header("Transfer-Encoding", "chunked")
        else:
            lie = page.length if page is not None else None
            self.send_header("Content-Length", str(len(body) if lie is None else lie))
        self.end_headers()
        if self.command == "HEAD":
            return
        cut = page.cuts.pop(0) if page is not None and page.cuts else None
        payload = body if cut is None else body[:cut]
        try:
            if page is not None and page.chunked:
                self._chunks(payload, ended=cut is None)
            elif page is not None and page.slow:
                self._slowly(payload, page.slow)
            else:
                self.wfile.write(payload)
        except (BrokenPipeError, ConnectionResetError):
            self.server_state.closed.set()
            self.close_connection = True
            return
        self.server_state.sent += len(payload)
        if cut is not None or (page is not None and page.length is not None):
            self.close_connection = True

    def _slowly(self, payload: bytes, pause: float) -> None:
        for start in range(0, len(payload), 65536):
            time.sleep(pause)
            self.wfile.write(payload[start : start + 65536])

    def _chunks(self, payload: bytes, *, ended: bool) -> None:
        for start in range(0, len(payload), 4096):
            piece = payload[start : start + 4096]
            self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
        if ended:
            self.wfile.write(b"0\r\n\r\n")
