"""The outermost frame of a stream of events, in which its faults are told."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Callable, Iterable

from edgewise.api.context import RequestContext
from edgewise.api.errors import error_body, internal_error
from edgewise.api.sse import sse
from edgewise.core.errors import EdgewiseError
from edgewise.core.log import get_logger

log = get_logger(__name__)


def error_event(error: EdgewiseError) -> Iterable[bytes]:
    """The event "error" with the body that the same fault has as an answer."""
    return (sse({"type": "error", **error_body(error)}, event="error"),)


async def with_faults(
    events: AsyncGenerator[bytes, None],
    context: RequestContext,
    failure: Callable[[EdgewiseError], Iterable[bytes]] = error_event,
) -> AsyncGenerator[bytes, None]:
    """These events; a fault becomes what `failure` makes of it, after which nothing comes."""
    async with contextlib.aclosing(events):
        try:
            async for event in events:
                yield event
        except EdgewiseError as error:
            context.error = error.code
            for event in failure(error):
                yield event
        except Exception as error:  # outermost frame of a stream; the client must hear of it
            log.exception("stream_broke", request_id=context.id)
            context.error = "internal_error"
            for event in failure(internal_error(error)):
                yield event
