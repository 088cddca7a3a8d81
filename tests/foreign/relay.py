"""A relay between a foreign client and the service: it counts what really crossed the wire, by route and status.

It changes three things, which a test report must say: the model's name in a JSON body (suites ask for models of their makers),
the API key (suites bring an invented one), and a `timeout` that no machine could keep: to ask for an answer within a nanosecond
is to ask for a 504. For suites of servers that need neither, it adds the prefix /v1 and a model's name where they are missing.
Bodies and streams pass unchanged otherwise.
"""

from __future__ import annotations

import json
import re
import threading
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from scripts.service import free_port

_HOP = frozenset(
    {"connection", "keep-alive", "transfer-encoding", "te", "trailer", "upgrade", "content-length", "host"}
)
_IDS = re.compile(r"(?<=/)(resp|file|batch|msg)[-_][A-Za-z0-9]+")
_MODEL_PATH = re.compile(r"^/v1/models/gpt-[^/]*$")
SHORTEST_S = 60
"""Seconds that a request is given at least."""
METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"]


class Relay:
    """A context manager; a server of its own thread on loopback.

    Attributes:
        url: Where clients connect.
        target, model: The service behind it, and its model.
        seen: (method, path, status) -> number of answers; ids in paths are replaced.
        faults: Bodies of answers with a status of 500 and above.
    """

    _client: httpx.AsyncClient

    def __init__(self, target: str, model: str, *, add_v1: bool = False, add_model: bool = False) -> None:
        self.url = f"http://127.0.0.1:{free_port()}"
        self.seen: Counter[tuple[str, str, int]] = Counter()
        self.faults: list[str] = []
        self.target = target
        self.model = model
        self._add_v1 = add_v1
        self._add_model = add_model
        app = Starlette(routes=[Route("/{path:path}", self._pass, methods=METHODS)], lifespan=self._with_client)
        config = uvicorn.Config(
            app, host="127.0.0.1", port=int(self.url.rpartition(":")[2]), log_level="critical", lifespan="on"
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, name="relay", daemon=True)

    @property
    def requests(self) -> int:
        return sum(self.seen.values())

    @property
    def server_errors(self) -> int:
        """Answers with a status of 500 and above."""
        return sum(count for status, count in self.statuses().items() if status >= 500)

    def statuses(self) -> Counter[int]:
        counted: Counter[int] = Counter()
        for (_, _, status), count in self.seen.items():
            counted[status] += count
        return counted

    def __enter__(self) -> Relay:
        self._thread.start()
        while not self._server.started:
            self._thread.join(0.02)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.should_exit = True
        self._thread.join(10)

    @asynccontextmanager
    async def _with_client(self, _app: Starlette) -> AsyncIterator[None]:
        """The client lives and ends in the server's event loop, with its connections."""
        async with httpx.AsyncClient(base_url=self.target, timeout=None, trust_env=False) as self._client:
            yield

    async def _pass(self, request: Request) -> Response:
        body = self._with_model(await request.body())
        headers = [(name, value) for name, value in request.headers.items() if name not in _HOP | {"authorization"}]
        path = self._with_served(request.scope["raw_path"].decode("latin-1"))
        query = request.scope["query_string"].decode("latin-1")
        asked = self._client.build_request(
            request.method, f"{path}?{query}" if query else path, headers=headers, content=body
        )
        answer = await self._client.send(asked, stream=True)
        self.seen[request.method, _IDS.sub(r"{\1}", path), answer.status_code] += 1
        if answer.status_code >= 500:
            self.faults.append(f"{request.method} {path} {body[:2000]!r} -> {(await answer.aread())[:500]!r}")
        kept = {name: value for name, value in answer.headers.items() if name not in _HOP}
        return StreamingResponse(_pieces(answer), status_code=answer.status_code, headers=kept)

    def _with_served(self, path: str) -> str:
        """The path with our model's name, where it asks for a model of OpenAI's."""
        if self._add_v1 and not path.startswith("/v1/"):
            path = f"/v1{path}"
        return _MODEL_PATH.sub(f"/v1/models/{self.model}", path)

    def _with_model(self, body: bytes) -> bytes:
        """The body with our model's name, if it is a JSON object that names one, or should; and without a time limit that is
        shorter than any answer."""
        try:
            parsed = json.loads(body)
        except ValueError:
            return body
        if not isinstance(parsed, dict):
            return body
        named = isinstance(parsed.get("model"), str)
        missing = self._add_model and parsed.get("model") is None
        changes: dict[str, Any] = {"model": self.model} if named or missing else {}
        timeout = parsed.get("timeout")
        if isinstance(timeout, (int, float)) and timeout is not True and 0 < timeout < SHORTEST_S:
            changes["timeout"] = SHORTEST_S
        return json.dumps(parsed | changes).encode() if changes else body


async def _pieces(answer: httpx.Response) -> AsyncIterator[bytes]:
    """The body as it comes; the connection behind is given up when the client in front is."""
    try:
        if answer.is_stream_consumed:
            yield answer.content
            return
        async for piece in answer.aiter_raw():
            yield piece
    finally:
        await answer.aclose()
