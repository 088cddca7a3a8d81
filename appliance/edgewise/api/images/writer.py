"""Pictures in OpenAI's shape: one body, or a stream of partial pictures and finished ones."""

from __future__ import annotations

import asyncio
import base64
import struct
from collections import Counter
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any, Literal

from edgewise.api.context import RequestContext
from edgewise.api.faults import with_faults
from edgewise.api.sse import KEEP_ALIVE, sse
from edgewise.models.diffusion.pictures import Format, convert
from edgewise.pipeline.pictures import Drawn, PictureRun

_NO_TOKENS = {
    "input_tokens": 0,
    "output_tokens": 0,
    "total_tokens": 0,
    "input_tokens_details": {"image_tokens": 0, "text_tokens": 0},
}
"""Pictures are not counted in tokens; clients of OpenAI's expect the object."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureForm:
    """What the answer looks like.

    Attributes:
        kind: Which route is answered.
        output, quality: Format of the pictures; quality from 0 to 100 of JPEG and WebP.
    """

    kind: Literal["generation", "edit"]
    stream: bool
    output: Format
    quality: int

    @property
    def event(self) -> str:
        """What events of this route are called."""
        return f"image_{self.kind}"


async def whole_answer(run: PictureRun, form: PictureForm, created: int) -> dict[str, Any]:
    """All pictures as one body. Raises what an engine reports."""
    pictures: dict[int, str] = {}
    size = ""
    async for drawn in run.chunks():
        if drawn.chunk.picture is not None:
            size = _size(drawn.chunk.picture)
            pictures[drawn.index] = await _encoded(drawn.chunk.picture, form)
    return {
        "created": created,
        "background": "opaque",
        "data": [{"b64_json": pictures[index]} for index in sorted(pictures)],
        "output_format": form.output,
        "size": size,
        "usage": _NO_TOKENS,
        "edgewise": run.receipt().to_dict(),
    }


def _size(png: bytes) -> str:
    """As OpenAI writes it, from the header of the file: its first chunk has width and height."""
    return "{}x{}".format(*struct.unpack_from(">II", png, 16))


def picture_events(
    run: PictureRun, form: PictureForm, context: RequestContext, created: int, *, keepalive_s: float
) -> AsyncGenerator[bytes, None]:
    """A stream's events; a fault becomes an error event, after which nothing comes."""
    return with_faults(_events(run, form, created, keepalive_s), context)


async def _events(run: PictureRun, form: PictureForm, created: int, keepalive_s: float) -> AsyncGenerator[bytes, None]:
    shown: Counter[int] = Counter()
    while not run.done:
        drawn = await run.receive(keepalive_s)
        if drawn is None:
            yield KEEP_ALIVE
            continue
        if drawn.chunk.preview is not None:
            yield await _partial(drawn, drawn.chunk.preview, shown[drawn.index], form, created)
            shown[drawn.index] += 1
        if drawn.chunk.picture is not None:
            yield await _completed(run, drawn, drawn.chunk.picture, form, created)


async def _partial(drawn: Drawn, preview: bytes, number: int, form: PictureForm, created: int) -> bytes:
    body = {
        **_common(f"{form.event}.partial_image", form, created),
        "b64_json": await _encoded(preview, form),
        "partial_image_index": number,
        "size": "auto",
        "edgewise": {"index": drawn.index, "step": drawn.chunk.offset + drawn.chunk.count, "steps": drawn.chunk.total},
    }
    return sse(body, event=body["type"])


async def _completed(run: PictureRun, drawn: Drawn, picture: bytes, form: PictureForm, created: int) -> bytes:
    """The last one carries the receipt."""
    stats = drawn.chunk.stats
    body = {
        **_common(f"{form.event}.completed", form, created),
        "b64_json": await _encoded(picture, form),
        "size": "auto" if stats is None else f"{stats.width}x{stats.height}",
        "usage": _NO_TOKENS,
        "edgewise": {"index": drawn.index, **(run.receipt().to_dict() if run.done else {})},
    }
    return sse(body, event=body["type"])


def _common(kind: str, form: PictureForm, created: int) -> dict[str, Any]:
    return {
        "type": kind,
        "created_at": created,
        "background": "opaque",
        "output_format": form.output,
        "quality": "auto",
    }


async def _encoded(png: bytes, form: PictureForm) -> str:
    """Base64 of a picture in the asked format, made in a thread: the event loop serves everybody."""
    return await asyncio.to_thread(lambda: base64.b64encode(convert(png, form.output, form.quality)).decode("ascii"))
