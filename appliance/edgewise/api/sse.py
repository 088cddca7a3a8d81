"""Server-sent events, and work that ends when its client leaves."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Coroutine, Mapping
from typing import Any, TypeVar

from edgewise.api.text import dumps
from edgewise.core.errors import Cancelled
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

KEEP_ALIVE = b": keep-alive\n\n"
DONE = b"data: [DONE]\n\n"

Result = TypeVar("Result")


def sse(data: Any, *, event: str | None = None, id: int | None = None) -> bytes:
    """One event with JSON data (WHATWG HTML, section 9.2)."""
    head = b"" if event is None else f"event: {event}\n".encode()
    head += b"" if id is None else f"id: {id}\n".encode()
    return head + b"data: " + dumps(data) + b"\n\n"


async def attended(receive: Receive, work: Coroutine[Any, Any, Result]) -> Result:
    """Do `work` while the client is there; raises `Cancelled` in the turn in which it leaves, the work cancelled.

    The request's body must have been read.
    """
    task = asyncio.create_task(work)
    watcher = asyncio.create_task(_disconnected(receive))
    try:
        await asyncio.wait({task, watcher}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise Cancelled("The client left before it was answered.")
        return task.result()
    finally:
        await _end(task, watcher)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        continue


async def _end(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class EventStream(Response):
    """A response of events; its generator is closed as soon as the client leaves."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[bytes, None], headers: Mapping[str, str] | None = None) -> None:
        self.status_code = 200
        self.background = None
        self._events = events
        self.init_headers({"cache-control": "no-cache", "x-accel-buffering": "no", **(headers or {})})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        del scope
        with contextlib.suppress(Cancelled):
            await attended(receive, self._write(send))

    async def _write(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async with contextlib.aclosing(self._events) as events:
            async for event in events:
                await send({"type": "http.response.body", "body": event, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
