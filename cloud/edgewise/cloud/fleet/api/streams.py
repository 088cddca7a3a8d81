"""Server-sent events of the fleet: what changes, and the answers of one command."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator

from fastapi import Request

from edgewise.api.context import context_of
from edgewise.api.errors import error_body
from edgewise.api.sse import EventStream, kept_alive, sse
from edgewise.cloud.fleet.api.auth import still_there
from edgewise.cloud.fleet.api.state import ApiState, state_of
from edgewise.cloud.fleet.changes import Changes
from edgewise.core.errors import EdgewiseError
from edgewise.wire.fleet import Ack

_SILENCE_S = 15.0
_ASK_S = 30.0
_SEND_S = 60.0


def event_stream(request: Request, events: AsyncGenerator[bytes, None]) -> EventStream:
    """Events until they end, the client leaves, its login is over or the service stops."""
    over = _over(request, state_of(request))
    return EventStream(kept_alive(events, silence_s=_SILENCE_S, until=over), send_timeout_s=_SEND_S)


async def changes_of(changes: Changes, tenant: str) -> AsyncGenerator[bytes, None]:
    """`change` for each, `lost` if so many waited that any may be missing."""
    with changes.subscribe(tenant) as subscription:
        while True:
            some = await subscription.next()
            if subscription.lost:
                subscription.lost = False
                yield sse({}, event="lost")
            for change in some:
                yield sse({"kind": change.kind, "id": change.id}, event="change")


async def acks_of(request: Request, acks: AsyncIterator[Ack]) -> AsyncGenerator[bytes, None]:
    """`ack` for each; `error` if they cannot go on."""
    try:
        async for ack in acks:
            yield sse(ack.model_dump(mode="json", exclude_none=True), event="ack")
    except EdgewiseError as error:
        context_of(request.scope).error = error.code
        yield sse(error_body(error), event="error")


async def _over(request: Request, state: ApiState) -> None:
    stopping = asyncio.ensure_future(state.closing.wait())
    try:
        while not stopping.done():
            await asyncio.wait({stopping}, timeout=_ASK_S)
            if not stopping.done() and not await still_there(request):
                return
    finally:
        stopping.cancel()
