"""Server-sent events, and work that ends when its client leaves."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Coroutine
from typing import Any, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from edgewise.api.context import context_of
from edgewise.api.responses import dumps
from edgewise.core.errors import Cancelled
from edgewise.core.patience import Alarm, end_task

KEEP_ALIVE = b": keep-alive\n\n"
DONE = b"data: [DONE]\n\n"

Result = TypeVar("Result")


def sse(data: Any, *, event: str | None = None, id: int | str | None = None) -> bytes:
    """One event with JSON data (WHATWG HTML, section 9.2)."""
    head = b"" if event is None else f"event: {event}\n".encode()
    head += b"" if id is None else f"id: {id}\n".encode()
    return head + b"data: " + dumps(data) + b"\n\n"


async def kept_alive(
    events: AsyncGenerator[bytes, None], *, silence_s: float, until: Coroutine[Any, Any, object]
) -> AsyncGenerator[bytes, None]:
    """Events as they come, a comment first and after each `silence_s` without one; ends with them, or when `until` is done."""
    end = asyncio.create_task(until)
    async with contextlib.aclosing(events):
        following: asyncio.Task[bytes] = asyncio.ensure_future(anext(events))
        try:
            yield KEEP_ALIVE  # the headers leave at once
            while not end.done():
                await asyncio.wait({end, following}, timeout=silence_s, return_when=asyncio.FIRST_COMPLETED)
                if following.done():
                    try:
                        event = following.result()
                    except StopAsyncIteration:
                        return
                    following = asyncio.ensure_future(anext(events))
                    yield event
                elif not end.done():
                    yield KEEP_ALIVE
        finally:
            await end_task(end, following)


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
        await end_task(task, watcher)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        continue


class EventStream(Response):
    """A response of events; its generator is closed as soon as the client leaves.

    Args:
        send_timeout_s: A client that takes nothing for so long counts as gone.
    """

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[bytes, None], *, send_timeout_s: float) -> None:
        self.status_code = 200
        self.background = None
        self._events = events
        self._send_timeout_s = send_timeout_s
        self.init_headers({"cache-control": "no-cache", "x-accel-buffering": "no"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await attended(receive, self._write(send))
        except Cancelled as error:
            context_of(scope).error = error.code

    async def _write(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async with contextlib.aclosing(self._events) as events, _Taken(self._send_timeout_s) as taken:
            async for event in events:
                taken.alarm.begin()
                await send({"type": "http.response.body", "body": event, "more_body": True})
                taken.alarm.end()
        await send({"type": "http.response.body", "body": b"", "more_body": False})


class _Taken:
    """Ends the task inside it with `Cancelled` when one of its sends, told to `alarm`, takes too long.

    One alarm for all of them, since nearly every send is over at once (`core.patience.within` would make a timer for each).
    """

    def __init__(self, seconds: float) -> None:
        self.alarm = Alarm(seconds, self._give_up)
        self._given_up = False

    async def __aenter__(self) -> _Taken:
        self._task = asyncio.current_task()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self.alarm.close()
        if self._given_up and isinstance(error, asyncio.CancelledError):
            raise Cancelled(f"The client took nothing for {self.alarm.seconds:g} s.") from None

    def _give_up(self) -> None:
        self._given_up = True
        if self._task is not None:
            self._task.cancel()
