"""An API over a fake engine, asked in process or over a real socket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import uvicorn
from fastapi import FastAPI

from edgewise.api.app import create_app
from edgewise.api.deps import ApiDependencies
from edgewise.pipeline.model import Models, ServedModel
from tests.fakes.engine import FakeEngine
from tests.fakes.serving import fake_model

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
LOOPBACK = "http://127.0.0.1:8400"


def hello(**fields: Any) -> dict[str, Any]:
    """A chat body."""
    return {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], **fields}


def prompt(**fields: Any) -> dict[str, Any]:
    """A completions body."""
    return {"model": "tiny", "prompt": "hi", **fields}


@dataclass
class Api:
    """One service; `post` and `get` ask it in process, as a caller on `base` would."""

    engine: FakeEngine
    deps: ApiDependencies
    app: FastAPI
    base: str = LOOPBACK
    headers: dict[str, str] = field(default_factory=dict)

    async def request(self, method: str, path: str, **named: Any) -> httpx.Response:
        transport = httpx.ASGITransport(self.app)
        async with httpx.AsyncClient(transport=transport, base_url=self.base, headers=self.headers) as client:
            return await client.request(method, path, **named)

    async def get(self, path: str, **named: Any) -> httpx.Response:
        return await self.request("GET", path, **named)

    async def post(self, path: str, body: Any, **named: Any) -> httpx.Response:
        """A dict is sent as JSON (also with what JSON has no form for), bytes as they are."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"content-type": "application/json", **named.pop("headers", {})}
        return await self.request("POST", path, content=content, headers=headers, **named)

    async def answer(self, path: str, body: Any) -> dict[str, Any]:
        """The body of a request that succeeds."""
        response = await self.post(path, body)
        assert response.status_code == 200, response.text
        result: dict[str, Any] = response.json()
        return result

    async def events(self, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
        """The events of a stream that ends with [DONE]."""
        response = await self.post(path, body | {"stream": True})
        assert response.status_code == 200, response.text
        assert response.headers["content-type"].startswith("text/event-stream")
        events = parse_events(response.text)
        assert events[-1] == "[DONE]"
        return [event for event in events if isinstance(event, dict)]

    async def refusal(self, path: str, body: Any, status: int = 400, **named: Any) -> dict[str, Any]:
        """The error of a request that is refused; checks its shape and that nothing reached the engine."""
        before = len(self.engine.requests)
        response = await self.post(path, body, **named)
        assert response.status_code == status, response.text
        assert len(self.engine.requests) == before
        return error_of(response)


def make_api(
    engine: FakeEngine | None = None, *, model: ServedModel | None = None, base: str = LOOPBACK, **deps: Any
) -> Api:
    fake = engine or FakeEngine()
    models = Models([model or fake_model(fake, aliases=("starter",))])
    dependencies = ApiDependencies(models=models, **deps)
    return Api(engine=fake, deps=dependencies, app=create_app(dependencies), base=base)


def error_of(response: httpx.Response) -> dict[str, Any]:
    """The error object; it must have OpenAI's shape exactly."""
    assert response.headers["content-type"] == "application/json"
    body = response.json()
    assert body.keys() == {"error"}
    error: dict[str, Any] = body["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["message"]
    assert error["type"]
    assert error["code"]
    return error


def parse_events(text: str) -> list[dict[str, Any] | str]:
    """Data of a stream's events, comments left out; every event must be `data: ...` and an empty line."""
    assert text.endswith("\n\n")
    events: list[dict[str, Any] | str] = []
    for block in text[:-2].split("\n\n"):
        if block.startswith(":"):
            continue
        assert block.startswith("data: ")
        assert "\n" not in block
        payload = block[len("data: ") :]
        events.append(payload if payload == "[DONE]" else json.loads(payload))
    return events


def parse_named_events(text: str) -> list[dict[str, Any]]:
    """Data of a stream whose events are named; each name must be the `type` that the data gives."""
    events = []
    for block in text.strip().split("\n\n"):
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        events.append(event)
    return events


def content_of(events: list[dict[str, Any]], index: int = 0) -> str:
    """Joined text of one choice of a stream, chat or completion."""
    return "".join(
        choice.get("text") or choice.get("delta", {}).get("content") or ""
        for event in events
        for choice in event["choices"]
        if choice["index"] == index
    )


@asynccontextmanager
async def listening(api: Api) -> AsyncIterator[str]:
    """The service on a real loopback socket, in this event loop; yields its URL."""
    config = uvicorn.Config(api.app, host="127.0.0.1", port=0, log_config=None, lifespan="off", access_log=False)
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server._serve())
    try:
        while not server.started:  # noqa: ASYNC110 - uvicorn has no event to wait for
            await asyncio.sleep(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        await serving


async def until(condition: Any, *, seconds: float = 60.0) -> None:
    """Wait for a condition; fails loudly if it does not come true."""
    deadline = asyncio.get_running_loop().time() + seconds
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, "the condition did not come true"
        await asyncio.sleep(0.005)
