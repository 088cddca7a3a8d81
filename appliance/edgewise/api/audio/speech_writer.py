"""Speech as its client hears it: a file at once, a file that grows, or server-sent events."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncGenerator, Mapping
from typing import Any

from starlette.types import Receive, Scope, Send

from edgewise.api.context import RequestContext, context_of
from edgewise.api.faults import with_faults
from edgewise.api.sse import KEEP_ALIVE, EventStream, sse
from edgewise.core.errors import EdgewiseError
from edgewise.models.media.sound_out import SoundFormat, open_sound
from edgewise.pipeline.speech import SAMPLE_BYTES, SpeechRun, Spoken

_USAGE = {"input_tokens": 0, "output_tokens": 0, "total_tokens": 0}
"""Speech is not counted in tokens; clients of OpenAI's expect the object."""


async def whole_sound(run: SpeechRun, first: Spoken, format: SoundFormat) -> bytes:
    """The file with all that is spoken; its header knows how long it is. Raises what an engine reports."""
    pieces = [first.samples]
    if first.finish is None:
        pieces += [spoken.samples async for spoken in run.chunks()]
    samples = b"".join(pieces)

    def encoded() -> bytes:
        writer = open_sound(format, first.rate, len(samples) // SAMPLE_BYTES)
        return writer.write(samples) + writer.close()

    return await asyncio.to_thread(encoded)


async def growing_sound(run: SpeechRun, first: Spoken, format: SoundFormat) -> AsyncGenerator[bytes, None]:
    """A file's bytes as they are spoken. Raises what an engine reports."""
    writer = open_sound(format, first.rate)
    yield await asyncio.to_thread(writer.write, first.samples)
    if first.finish is None:
        async for spoken in run.chunks():
            if piece := await asyncio.to_thread(writer.write, spoken.samples):
                yield piece
    if rest := await asyncio.to_thread(writer.close):
        yield rest


def speech_events(
    run: SpeechRun, first: Spoken, format: SoundFormat, context: RequestContext, *, keepalive_s: float
) -> AsyncGenerator[bytes, None]:
    """A stream's events; a fault becomes an error event, after which nothing comes."""
    return with_faults(_events(run, first, format, keepalive_s), context)


async def _events(
    run: SpeechRun, first: Spoken, format: SoundFormat, keepalive_s: float
) -> AsyncGenerator[bytes, None]:
    writer = open_sound(format, first.rate)
    spoken: Spoken | None = first
    while True:
        if spoken is None:
            yield KEEP_ALIVE
        elif piece := await asyncio.to_thread(writer.write, spoken.samples):
            yield _delta(piece)
        if run.done:
            break
        spoken = await run.receive(keepalive_s)
    if rest := await asyncio.to_thread(writer.close):
        yield _delta(rest)
    yield _event("speech.audio.done", usage=_USAGE, edgewise=run.receipt().to_dict())


def _delta(piece: bytes) -> bytes:
    return _event("speech.audio.delta", audio=base64.b64encode(piece).decode("ascii"))


def _event(kind: str, **fields: Any) -> bytes:
    return sse({"type": kind, **fields}, event=kind)


class SoundStream(EventStream):
    """A response of a file that grows.

    A fault on the way leaves it without its end, so that the server closes the connection and the client sees that it is cut.
    """

    def __init__(
        self,
        sound: AsyncGenerator[bytes, None],
        *,
        media_type: str,
        headers: Mapping[str, str],
        send_timeout_s: float,
    ) -> None:
        self.media_type = media_type
        super().__init__(sound, send_timeout_s=send_timeout_s)
        self.headers.update(headers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        except EdgewiseError as error:
            context_of(scope).error = error.code
