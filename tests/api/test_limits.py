"""Admission, drain, and clients that leave."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from starlette.types import Message

from edgewise.api.deps import Limits
from edgewise.api.shapes import ChatShape
from edgewise.core.errors import EdgewiseError, QueueFull
from edgewise.pipeline.receipts import Usage
from tests.api.harness import CHAT, COMPLETIONS, Api, content_of, error_of, hello, make_api, parse_events, prompt, until
from tests.fakes.engine import FakeEngine
from tests.fakes.serving import says


def held(text: str = "hello", **named: Any) -> FakeEngine:
    """An engine that takes requests and lets nothing out yet."""
    engine = FakeEngine(script=says(text), **named)
    engine.hold.clear()
    return engine


@pytest.mark.parametrize("body", [hello(), hello(stream=True)])
async def test_one_request_too_many_is_told_when_to_come_again(body: dict[str, Any]) -> None:
    engine = held()
    api = make_api(engine, limits=Limits(max_concurrent_requests=2))
    first = [asyncio.create_task(api.post(CHAT, hello())) for _ in range(2)]
    await until(lambda: len(engine.requests) == 2)
    refused = await api.post(CHAT, body)
    assert refused.status_code == 429
    assert error_of(refused)["code"] == "rate_limit_exceeded"
    assert int(refused.headers["retry-after"]) >= 1
    assert (await api.get("/healthz")).status_code == 200
    engine.hold.set()
    assert {(await one).status_code for one in first} == {200}
    assert (await api.post(CHAT, hello())).status_code == 200


async def test_a_full_engine_queue_passes_its_estimate_on() -> None:
    api = make_api(FakeEngine(refuse=QueueFull("The queue is full.", retry_after_s=7.2)))
    response = await api.post(CHAT, hello())
    assert (response.status_code, response.headers["retry-after"]) == (429, "8")


async def test_a_refused_request_gives_its_place_back() -> None:
    api = make_api(limits=Limits(max_concurrent_requests=1))
    for body in ({}, hello(model="nope"), hello(temperature=9)):
        assert (await api.post(CHAT, body)).status_code in (400, 404)
    assert (await api.post(CHAT, b"x", headers={"content-type": "text/plain"})).status_code == 415
    assert (await api.post(CHAT, hello())).status_code == 200
    assert repr(api.deps.requests) == "Requests(open=0, limit=1, draining=False)"


class Stubborn:
    """A double of a run whose end is waited for, or fails."""

    model_name = "tiny"
    first_token_s: float | None = None

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error

    def usage(self) -> Usage:
        return Usage(prompt_tokens=0, completion_tokens=0, cached_tokens=None)

    def fail(self, error: EdgewiseError) -> None: ...

    async def aclose(self) -> None:
        if self.error is not None:
            raise self.error
        await asyncio.Event().wait()


async def test_a_run_that_does_not_end_well_gives_its_place_back() -> None:
    requests = make_api(limits=Limits(max_concurrent_requests=1)).deps.requests
    broken = requests.enter(id="broken", route=CHAT, key=None)
    requests.attach(broken, Stubborn(RuntimeError("a fault of a stream")))
    with pytest.raises(RuntimeError):
        await requests.end(broken, status=200)
    waits = requests.enter(id="waits", route=CHAT, key=None)
    requests.attach(waits, Stubborn())
    ending = asyncio.create_task(requests.end(waits, status=200))
    await asyncio.sleep(0)
    assert requests.open == 1
    ending.cancel()
    await asyncio.gather(ending, return_exceptions=True)
    assert requests.open == 0
    assert await requests.wait_idle(0.0)


async def test_while_draining_new_requests_are_refused_and_running_ones_end_well() -> None:
    engine = held()
    api = make_api(engine)
    running = [asyncio.create_task(api.post(CHAT, hello(stream=stream))) for stream in (True, False)]
    await until(lambda: len(engine.requests) == 2)
    api.deps.requests.begin_drain()
    assert api.deps.draining
    refused = await api.post(CHAT, hello())
    assert refused.status_code == 503
    assert error_of(refused)["code"] == "shutting_down"
    assert int(refused.headers["retry-after"]) >= 1
    assert not await api.deps.requests.wait_idle(0.01)
    engine.hold.set()
    assert await api.deps.requests.wait_idle(10)
    streamed, whole = [await one for one in running]
    assert parse_events(streamed.text)[-1] == "[DONE]"
    assert whole.json()["choices"][0]["message"]["content"] == "hello"


async def test_with_nothing_open_a_drain_needs_no_time() -> None:
    assert await make_api().deps.requests.wait_idle(0.0)


async def test_what_does_not_end_in_time_is_cut_with_an_error() -> None:
    engine = held(text="hello", chunk_tokens=1)
    api = make_api(engine)
    running = [asyncio.create_task(api.post(CHAT, hello(stream=stream))) for stream in (True, False)]
    await until(lambda: len(engine.requests) == 2)
    assert api.deps.requests.cut() == 2
    assert await api.deps.requests.wait_idle(10)
    streamed, whole = [await one for one in running]
    events = parse_events(streamed.text)
    assert isinstance(events[-1], dict)
    assert events[-1]["error"]["code"] == "shutting_down"
    assert (whole.status_code, error_of(whole)["code"]) == (503, "shutting_down")
    assert engine.pages_used == 0


async def test_a_request_that_has_not_begun_is_cut_too() -> None:
    async def body() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.Event().wait()

    api = make_api()
    headers = {"content-type": "application/json"}
    slow = asyncio.create_task(api.request("POST", CHAT, content=body(), headers=headers))
    await until(lambda: api.deps.requests.open == 1)
    api.deps.requests.cut()
    assert (await slow).status_code == 503


class Caller:
    """Speaks ASGI to the app itself, so that it can leave at an exact moment."""

    def __init__(self, api: Api, path: str, body: dict[str, Any]) -> None:
        self.sent: list[Message] = []
        self._left = asyncio.Event()
        self._first = {"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}
        self._messages: list[dict[str, Any]] = [self._first]
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "headers": [(b"content-type", b"application/json"), (b"host", b"localhost")],
            "server": ("127.0.0.1", 8400),
            "client": ("127.0.0.1", 5),
        }
        self.task = asyncio.create_task(api.app(scope, self._receive, self.send))

    async def _receive(self) -> Message:
        if self._messages:
            return self._messages.pop()
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        self.sent.append(message)

    def leave(self) -> None:
        self._left.set()


BODIES = [
    (CHAT, hello()),
    (CHAT, hello(stream=True)),
    (CHAT, hello(stream=True, n=3)),
    (COMPLETIONS, prompt()),
    (COMPLETIONS, prompt(stream=True, prompt=["a", "b"])),
]


@pytest.mark.parametrize(("path", "body"), BODIES)
async def test_a_client_that_leaves_frees_its_pages(path: str, body: dict[str, Any]) -> None:
    engine = held()
    api = make_api(engine)
    caller = Caller(api, path, body)
    await until(lambda: engine.pages_used > 0)
    caller.leave()
    await asyncio.wait_for(caller.task, 60)
    assert engine.pages_used == 0
    assert engine.aborted == len(engine.requests)
    assert api.deps.requests.open == 0
    assert api.deps.requests.show()["finished"][0]["error"] == "cancelled"


@pytest.mark.parametrize(("path", "body"), BODIES)
async def test_at_whatever_turn_it_leaves(path: str, body: dict[str, Any]) -> None:
    for turns in range(0, 40, 3):
        engine = FakeEngine(script=says("a long enough answer to be left in the middle"))
        api = make_api(engine)
        caller = Caller(api, path, body)
        for _ in range(turns):
            await asyncio.sleep(0)
        caller.leave()
        await asyncio.wait_for(caller.task, 60)
        assert engine.pages_used == 0, turns
        assert api.deps.requests.open == 0, turns


async def test_a_client_that_leaves_while_the_request_waits_for_the_engine() -> None:
    class Busy(FakeEngine):
        async def submit(self, request: Any) -> Any:
            self.requests.append(request)
            await asyncio.Event().wait()

    engine = Busy()
    api = make_api(engine)
    caller = Caller(api, CHAT, hello())
    await until(lambda: len(engine.requests) == 1)
    caller.leave()
    await asyncio.wait_for(caller.task, 60)
    assert caller.sent[0]["status"] == 499


async def test_a_client_that_takes_nothing_of_its_stream_is_given_up() -> None:
    engine = FakeEngine(script=says("hello"))
    api = make_api(engine, limits=Limits(send_timeout_s=0.02))

    class Stalled(Caller):
        async def send(self, message: Message) -> None:
            await super().send(message)
            if len(self.sent) > 2:
                await asyncio.Event().wait()

    caller = Stalled(api, CHAT, hello(stream=True))
    await asyncio.wait_for(caller.task, 60)
    assert engine.pages_used == 0
    assert api.deps.requests.open == 0


async def test_a_broken_stage_of_our_own_is_an_error_event(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: Any) -> Any:
        raise RuntimeError("secret detail")

    monkeypatch.setattr(ChatShape, "deltas", broken)
    api = make_api(FakeEngine(script=says("hello")))
    response = await api.post(CHAT, hello(stream=True))
    events = parse_events(response.text)
    assert isinstance(events[-1], dict)
    assert events[-1]["error"]["code"] == "internal_error"
    assert "secret" not in response.text
    assert content_of([event for event in events[:-1] if isinstance(event, dict)]) == ""
    assert api.engine.pages_used == 0
